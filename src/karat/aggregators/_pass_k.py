"""Metrics over several attempts at a problem: any of k passes, all of k pass, the majority of k passes.

Each is the expectation over k attempts drawn from the n that were made, exactly and without bias (Chen et al.
2021 for pass@k), per problem; then the mean over problems. A problem is an example, or one unit of it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import comb
from typing import Any

import msgspec

from karat.aggregators._base import (
    Aggregate,
    Aggregator,
    Group,
    Passing,
    Values,
    not_applicable,
    register_aggregator,
)
from karat.records import MISSING_ATTEMPTS, WITH_MISSING, Estimate, Ok, Result
from karat.stats._validation import check_confidence


def pass_at_k(n: int, c: int, k: int) -> float:
    """The probability that at least one of k attempts, drawn from n of which c passed, passed."""
    return 1.0 - comb(n - c, k) / comb(n, k)


def pass_hat_k(n: int, c: int, k: int) -> float:
    """The probability that all of k attempts, drawn from n of which c passed, passed."""
    return comb(c, k) / comb(n, k)


def majority_at_k(n: int, c: int, k: int) -> float:
    """The probability that most of k attempts, drawn from n of which c passed, passed; a tie counts half."""
    twice = 0
    for passed in range(max(0, k - (n - c)), min(c, k) + 1):
        ways = comb(c, passed) * comb(n - c, k - passed)
        twice += 2 * ways if 2 * passed > k else ways if 2 * passed == k else 0
    return twice / (2 * comb(n, k))


def plurality_at_k(answers: Mapping[Any, tuple[int, int]], k: int) -> float:
    """The probability that the most frequent answer of k attempts is right; tied answers share.

    `answers` has for each answer how often it was given and how often that passed. All choices of k attempts are
    counted, in integers, without going through them: by how often the winner is given, and by who ties with it.
    """
    total = comb(sum(times for times, _ in answers.values()), k)
    credit = Fraction(0)
    for winner, (times, passed) in answers.items():
        if not passed:
            continue
        others = [count for answer, (count, _) in answers.items() if answer != winner]
        ways = sum(
            (comb(times, most) * _not_beaten(others, most, k - most) for most in range(1, min(times, k) + 1)),
            Fraction(0),
        )
        credit += Fraction(passed, times) * ways
    return float(credit / total)


def _not_beaten(others: Sequence[int], most: int, places: int) -> Fraction:
    """The ways to fill places with other answers, none more than `most` times, over the number of those that tie."""
    few = sum(count for count in others if count < most)  # these can neither beat nor tie
    ways = {(used, 0): comb(few, used) for used in range(min(few, places) + 1)}
    for count in (count for count in others if count >= most):
        filled: dict[tuple[int, int], int] = {}
        for (used, tied), each in ways.items():
            for times in range(min(most, places - used) + 1):
                place = (used + times, tied + (times == most))
                filled[place] = filled.get(place, 0) + each * comb(count, times)
        ways = filled
    return sum(
        (Fraction(each, tied + 1) for (used, tied), each in ways.items() if used == places), Fraction(0)
    )


class Problem:
    """The attempts at one problem: which passed, what each answered, and how many are missing."""

    __slots__ = ("answers", "missing", "passed")

    def __init__(self) -> None:
        self.passed: list[bool] = []
        self.answers: list[Any] = []
        self.missing = 0


class _State:
    __slots__ = ("attempts", "best", "values", "whole", "worst")

    def __init__(self, ks: Sequence[int]) -> None:
        self.whole = {k: Values() for k in ks}
        """The values of examples of which nothing is missing …"""
        self.values = {k: Values() for k in ks}
        """… and of the others; `missing` are problems without k scored attempts."""
        self.worst = {k: Values() for k in ks}
        """Of those others: the values if all missing attempts fail …"""
        self.best = {k: Values() for k in ks}
        """… and if all pass."""
        self.attempts = dict.fromkeys(ks, 0)
        """Missing attempts."""


MOST_ATTEMPTS = 10_000


class OverAttempts(Passing, Aggregator[_State], ABC):
    """Base of the aggregators over attempts: `k` is a number or a list; an attempt with at least `threshold` passes."""

    def __init__(
        self,
        k: int | Sequence[int] = 1,
        threshold: float = 0.5,
        cluster: str | None = None,
        confidence: float = 0.95,
    ) -> None:
        self.several = isinstance(k, (list, tuple, range))
        self.k: list[int] = [*k] if isinstance(k, (list, tuple, range)) else [k]  # type: ignore[list-item]  # checked
        if not self.k or not all(type(each) is int and 1 <= each <= MOST_ATTEMPTS for each in self.k):
            raise ValueError(
                f"k is {k!r:.60}: it must be a number of attempts from 1 to {MOST_ATTEMPTS:,}, or a list of"
                " such numbers"
            )
        self.threshold = threshold
        self.cluster = cluster
        self.confidence = check_confidence(confidence)

    @abstractmethod
    def expected(self, n: int, c: int, k: int) -> float:
        """The probability for k of n attempts of which c passed."""

    def value(self, problem: Problem, k: int) -> float:
        """The probability for one problem; a subclass may use its answers too."""
        return self.expected(len(problem.passed), sum(problem.passed), k)

    def bounds(self, problem: Problem, k: int) -> tuple[float, float]:
        """The bounds: the value if all missing attempts fail, and if all pass."""
        n, passed = len(problem.passed) + problem.missing, sum(problem.passed)
        return self.expected(n, passed, k), self.expected(n, passed + problem.missing, k)

    def start(self) -> _State:
        return _State(self.k)

    def add(self, state: _State, group: Group) -> _State:
        return self.add_problems(state, list(self._problems(group).values()), group.metadata)

    def add_problems(self, state: _State, problems: Sequence[Problem], metadata: Mapping[str, Any]) -> _State:
        """Add the problems of one example, which are one cluster."""
        missing = sum(problem.missing for problem in problems)
        for k in self.k:
            made = [(problem, len(problem.passed) + problem.missing) for problem in problems]
            values = [self.value(problem, k) for problem in problems if len(problem.passed) >= k]
            lacking = sum(n > 0 for _, n in made) - len(values)
            if not missing and not lacking:
                state.whole[k].add(values, metadata, self.cluster)
                continue
            known = [(problem, n) for problem, n in made if n]
            bounds = [self.bounds(problem, k) if n >= k else (0.0, 1.0) for problem, n in known]
            state.values[k].add(values, metadata, self.cluster)
            state.values[k].missing += lacking
            state.worst[k].add([worst for worst, _ in bounds], metadata, self.cluster)
            state.best[k].add([best for _, best in bounds], metadata, self.cluster)
            state.attempts[k] += missing
        return state

    def _problems(self, group: Group) -> dict[str, Problem]:
        problems: dict[str, Problem] = {}
        made: Counter[str] = Counter()
        for result in group.results:
            made[result.unit] += 1
            if not_applicable(result):
                continue
            problem = problems.setdefault(result.unit, Problem())
            outcome = result.outcome
            score = outcome.value.score if isinstance(outcome, Ok) else None
            if score is None or not isinstance(outcome, Ok):
                problem.missing += 1
                continue
            problem.passed.append(self.passes(score))
            problem.answers.append(answer_of(outcome.value))
        pending = group.pending
        for unit in [*problems, *(unit for unit in made if unit not in problems)] if pending else ():
            lacking = min(pending, group.attempts - made[unit])
            if lacking > 0:
                problems.setdefault(unit, Problem()).missing += lacking
                pending -= lacking
        for number in range(0, pending, group.attempts):  # units of which nothing is there yet
            unknown = problems.setdefault(f"pending {number}", Problem())
            unknown.missing += min(group.attempts, pending - number)
        return problems

    def merge(self, a: _State, b: _State) -> _State:
        for mine, theirs in ((a.whole, b.whole), (a.values, b.values), (a.worst, b.worst), (a.best, b.best)):
            for k in self.k:
                mine[k].merge(theirs[k])
        for k in self.k:
            a.attempts[k] += b.attempts[k]
        return a

    def finish(self, state: _State) -> Aggregate:
        out = Aggregate()
        for k in self.k:
            out.add(self.of_k(state, k), f"k={k}" if self.several else "")
        return self.oriented(out)

    def of_k(self, state: _State, k: int) -> Estimate:
        """The estimate for one k, over problems."""
        estimate, worst, best = (
            self._joined(state.whole[k], part) for part in (state.values[k], state.worst[k], state.best[k])
        )
        metadata = {**estimate.metadata, "k": k}
        if estimate.value is None:
            metadata["note"] = f"no example has {k:,} scored attempts"
        if state.attempts[k] or estimate.n < estimate.of:
            metadata[WITH_MISSING] = [worst.low, best.high]
        if state.attempts[k] and state.attempts[k] != estimate.of - estimate.n:
            metadata[MISSING_ATTEMPTS] = state.attempts[k]
        return msgspec.structs.replace(estimate, lowest=worst.value, highest=best.value, metadata=metadata)

    def _joined(self, whole: Values, part: Values) -> Estimate:
        """The estimate over the examples of which nothing is missing and the others."""
        every = Values()
        every.merge(whole)
        every.merge(part)
        return every.estimate(self.confidence, self.cluster)


def answer_of(result: Result) -> Any:
    """The answer of an attempt: the predicted label, or None if the evaluator gives none."""
    predicted = result.metadata.get("predicted")
    return None if predicted is None else str(predicted)


@register_aggregator("pass_at_k", "pass@k")
class PassAtK(OverAttempts):
    """The probability that at least one of `k` attempts passes, unbiased, averaged over problems."""

    name = "pass_at_k"

    def expected(self, n: int, c: int, k: int) -> float:
        return pass_at_k(n, c, k)


@register_aggregator("pass_hat_k", "pass^k")
class PassHatK(OverAttempts):
    """The probability that all of `k` attempts pass, unbiased, averaged over problems."""

    name = "pass_hat_k"

    def expected(self, n: int, c: int, k: int) -> float:
        return pass_hat_k(n, c, k)


@register_aggregator("majority_at_k", "maj@k")
class MajorityAtK(OverAttempts):
    """The probability that the most frequent answer of `k` attempts is right, averaged over problems.

    If the evaluator gives the predicted label, votes are for labels, and tied labels share. Otherwise all wrong
    attempts vote together. An answer that passed in some attempts only is right in that share.
    """

    name = "majority_at_k"

    def expected(self, n: int, c: int, k: int) -> float:
        return majority_at_k(n, c, k)

    def bounds(self, problem: Problem, k: int) -> tuple[float, float]:
        if None in problem.answers:
            return super().bounds(problem, k)
        return 0.0, 1.0  # a missing answer may turn any vote

    def value(self, problem: Problem, k: int) -> float:
        if any(answer is None for answer in problem.answers):
            return super().value(problem, k)
        answers: dict[Any, tuple[int, int]] = {}
        for answer, passed in zip(problem.answers, problem.passed, strict=True):
            times, right = answers.get(answer, (0, 0))
            answers[answer] = (times + 1, right + passed)
        return plurality_at_k(answers, k)
