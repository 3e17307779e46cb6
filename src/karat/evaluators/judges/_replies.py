"""Reading a judge's reply: the last complete JSON object, checked strictly against its contract.

The contract: one object with `analysis` (text) first and then exactly one of `pass`, `score`, `choice`, `claims` or
`verdicts`. These names sort in that order, because some providers emit properties alphabetically. Schemas use only
what every provider supports: no `minimum`, no `maxLength`, no `minItems`; graded scores are an enum of integers.
OpenAI takes `minItems` and `maxItems`, Anthropic refuses them and compatible servers differ, so only a grammar gets
them: see `Contract.schema`. What a schema does not say is checked when the reply is read.
"""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from karat.evaluators._values import nfkc
from karat.serialization import is_too_deep, storable

Field = Literal["pass", "score", "choice", "claims", "verdicts"]
FIELDS: tuple[Field, ...] = ("pass", "score", "choice", "claims", "verdicts")

LONGEST = 200_000
"""Characters of a reply that are looked at; a longer one is malformed."""

MOST_BRACES = 2000
"""Opening braces that may begin an object; the rest of a reply with more is not searched."""

MOST_SEARCHED = 1_000_000
"""Characters read in search of objects: each brace that begins none may be read to the end of the reply."""

MOST_CLAIMS = 500
"""Claims in one reply: a piece of an answer is a page at most, and a judge that repeats itself makes no verdict."""

LONGEST_STATEMENT = 2000
"""Characters of a plain text that may name a choice."""

LARGEST_STEP = 10**9

BOUNDED_TEXT = 80
"""Characters of a text that a grammar allows; of the text about an entry of a list, `BOUNDED_ITEM_TEXT`."""
BOUNDED_ITEM_TEXT = 40

TOKENS_PER_ENTRY = 100
"""Tokens that a reply may need for one entry of a list: a sentence or two and the names of the fields."""
BOUNDED_TOKENS = 120
BOUNDED_TOKENS_PER_ENTRY = 70
"""Tokens of a reply that a grammar bounds, and of each entry: at worst a token is one character, the rest is JSON."""

MOST_BOUNDED_ENTRIES = 3
"""Entries of a list of unknown length in a grammar: claims that a judge finds itself, steps that it cites."""

_NAMES = r"(?:[\w:]*think(?:ing)?|reasoning|thought|begin_of_thought)"
_OPEN_THINKING = re.compile(rf"<\|?{_NAMES}(?:\s[^<>]{{0,200}})?\|?>|\[{_NAMES}\]|◁{_NAMES}▷", re.IGNORECASE)
_THINKING = re.compile(rf"</\|?{_NAMES}\s*\|?>|\[/{_NAMES}\]|◁/{_NAMES}▷|<\|end_of_thought\|>", re.IGNORECASE)
_CHANNEL = re.compile(r"<\|(?:channel|start|message|im_start)\|>", re.IGNORECASE)
_TRAILING = re.compile(r"(?:\s|```|</(?:answer|verdict|output|json)>)*\Z", re.IGNORECASE)
_NEGATION = re.compile(
    r"\b(?:not|cannot|neither|nor|never|unable|unclear|either|unsure|unless|hypothetical\w*)\b|n['\u2019]t\b"
    r"|\b(?:instead of|rather than|other than)\b",
    re.IGNORECASE,
)
_MARKUP = r"\s\"'\u2018\u201c*_`(\["
_LEAD = (
    r"\s*+(?:(?:so|thus|therefore|hence|overall|in conclusion)[,:]?+\s++)?"
    r"(?:(?:(?:the|my)\s++)?(?:(?:final|best|correct|chosen)\s++)*+"
    r"(?:answer|choice|verdict|decision|judge?ment|option|label|result|conclusion)"
    r"[\s*_`]*+(?:(?:is|would be)\b:?|[:=\u2014-])"
    r"|i(?:\s++would|['\u2019]d)?\s++(?:choose|pick|select|say|answer)\b:?|it(?:\s++is|['\u2019]s)\b)?"
    rf"\s*+(?:(?:the|an?)\s++)?[{_MARKUP}]*+(?:<\w+>)?[{_MARKUP}]*+"
)
"""What may stand before a choice in a sentence that states it. "It told me to say yes" does not.

Every repetition is possessive: a text of spaces would take forever otherwise.
"""
_STANDS_ALONE = r"(?=[\s\"'\u2019\u201d*_`)\]]*(?:[.,;:!)\]<\n\u2014-]|\Z)|\s+(?:because|since|as)\b)"
"""What follows it: "no doubt" and "most of it" name no choice."""
_ORDINALS = frozenset({"first", "second", "one"})
"""Choices that open an enumeration where a comma follows: "First, I will …"."""
_SENTENCE = re.compile(r"[^.!?\n]*[.!?\n]?")
_REFUSES = re.compile(
    r"\s*(?:(?:i['\u2019]?m|i am) (?:\w+ )?sorry\b[,.]?\s*(?:but )?|sorry[,.]?\s*(?:but )?|as an ai\b[^.]{0,60}?)?"
    r"\b(?:i(?: am|['\u2019]m) (?:unable|not able) to"
    r"|i (?:can(?:no|['\u2019])t|won['\u2019]t|will not|(?:must )?decline to|refuse to))"
    r" (?:help|assist|judge|evaluate|assess|grade|rate|comply|engage|continue|participate|process"
    r"|provide (?:a|an|any|this)|give (?:a|an|any) (?:verdict|judgment|score))\b",
    re.IGNORECASE,
)
_VERDICT_NAMES = frozenset(
    {
        "verdict",
        "passed",
        "passes",
        "fail",
        "failed",
        "result",
        "decision",
        "final_verdict",
        "final_score",
        "final_choice",
        "grade",
        "rating",
        "correct",
        "is_correct",
        "supported_final",
        "judgment",
        "judgement",
        "outcome",
        "winner",
        "final",
        "overall_score",
        "total_score",
    }
)
"""Other words for a verdict: an object with one of them beside the field that was asked for says two things."""

_VERDICT_WORDS = frozenset(
    {
        "pass",
        "passed",
        "fail",
        "failed",
        "true",
        "false",
        "yes",
        "no",
        "correct",
        "incorrect",
        "right",
        "wrong",
    }
)
"""Texts that are a verdict under any name."""

_LIMITS = frozenset({"out_of", "scale", "max", "maximum", "max_score"})
"""Names of the best score: one that differs from the scale's belongs to another scale."""


class Malformed(ValueError):
    """A reply that does not keep the contract; the message is for the judge, which is asked to repair it."""


class Contract(msgspec.Struct, frozen=True):
    """What a reply must contain: the field and its valid values."""

    field: Field
    values: tuple[Any, ...] = ()
    """The integers of a scale, the choices, the ids of requirements, or the names of criteria."""
    recover: bool = False
    """Whether a choice named in plain text counts."""
    scale: tuple[int, ...] = ()
    """The integers of `verdicts` on graded criteria; without them, criteria have a pass."""
    evidence: bool = False
    """Whether `verdicts` are about requirements, with evidence."""
    texts: tuple[str, ...] = ()
    """The requirements of the ids, for replies that name a requirement instead of its id."""
    count: int | None = None
    """How many claims there are, where they were listed in the question."""
    labels: tuple[str, ...] = ()
    """The labels of `verdicts` on numbered items, whose numbers are `values`: each item gets exactly one."""

    @property
    def entries(self) -> int:
        """The number of entries in the list of a reply; 0 without a list, or with one of unknown length."""
        if self.field == "claims":
            return self.count or 0
        return len(self.values) if self.field == "verdicts" else 0

    def reply_tokens(self, least: int, bounded: bool = False) -> int:
        """Return how many tokens a reply may need: `least`, or more for a long list."""
        if bounded:
            entries = MOST_BOUNDED_ENTRIES if self.field == "claims" and not self.entries else self.entries
            return BOUNDED_TOKENS + entries * BOUNDED_TOKENS_PER_ENTRY * (3 if self.evidence else 1)
        return max(least, self.entries * TOKENS_PER_ENTRY)

    def schema(self, bounded: bool = False) -> dict[str, Any]:
        """The JSON Schema. `bounded` is for a grammar, which would otherwise never end.

        It limits texts, and a list has one place for each item with the item's own id: a small model that repeats an
        id or skips one cannot do so.
        """
        if not bounded:
            text: dict[str, Any] = {"type": "string"}
            return _object({"analysis": text, self.field: self._value(text, {})})
        text = {"type": "string", "maxLength": BOUNDED_TEXT}
        part = {"type": "string", "maxLength": BOUNDED_ITEM_TEXT}
        value = self._value(part, {"maxItems": MOST_BOUNDED_ENTRIES})
        if self.entries:
            places = [self._place(value["items"], number) for number in range(self.entries)]
            value = {"type": "array", "prefixItems": places, "minItems": len(places), "maxItems": len(places)}
        return _object({"analysis": text, self.field: value})

    def _place(self, entry: dict[str, Any], number: int) -> dict[str, Any]:
        """The schema of an entry at its place in the list: its id, criterion or claim is the one that belongs there."""
        if self.field == "claims":
            name, known = "claim", self.texts
        else:
            name, known = "criterion" if "criterion" in entry["properties"] else "id", self.values
        if number >= len(known):
            return entry
        return _object({**entry["properties"], name: {"const": known[number]}})

    def _value(self, text: dict[str, Any], limit: dict[str, Any]) -> dict[str, Any]:
        if self.field == "pass":
            return {"type": "boolean"}
        if self.field == "score":
            return {"type": "integer", "enum": list(self.values)}
        if self.field == "choice":
            return {"type": "string", "enum": list(self.values)}
        if self.field == "claims":
            items = _object({"claim": text, "supported": {"type": "boolean"}})
            return {"type": "array", "items": items, **limit}
        if self.labels:
            number = {"type": "integer", "enum": list(self.values)}
            label = {"type": "string", "enum": list(self.labels)}
            items = _object({"analysis": text, "id": number, "label": label})
        elif self.evidence:
            items = _object(
                {
                    "evidence": text,
                    "id": {"type": "integer", "enum": list(self.values)},
                    "quote": text,
                    "satisfied": {"type": "boolean"},
                    "steps": {"type": "array", "items": {"type": "integer"}, **limit},
                }
            )
        else:
            verdict: dict[str, Any] = {"pass": {"type": "boolean"}}
            if self.scale:
                verdict = {"score": {"type": "integer", "enum": list(self.scale)}}
            criterion = {"type": "string", "enum": list(self.values)}
            items = _object({"analysis": text, "criterion": criterion, **verdict})
        return {"type": "array", "items": items, **limit}

    def read(self, text: str) -> dict[str, Any]:
        """Parse the reply as `{"analysis": …, field: …}`; raise Malformed with the problem."""
        read: dict[str, Any] = storable(self._read(text))
        return read

    def _read(self, text: str) -> dict[str, Any]:
        found = _objects(text, self.field)
        if not found:
            if self.field == "choice" and self.recover and "{" not in text:
                return {"analysis": text.strip(), "choice": self._named_choice(text)}
            raise Malformed(f"there is no complete JSON object with {self.field!r} at the end of the reply")
        read = [self._check_value(each) for each in found]
        if any(each[self.field] != read[-1][self.field] for each in read):
            raise Malformed(f"the reply has several objects with different values of {self.field!r}")
        return read[-1]

    def _check_value(self, given: dict[str, Any]) -> dict[str, Any]:
        self._check_alone(given, {"analysis", self.field})
        analysis = given.get("analysis")
        if not isinstance(analysis, str):
            raise Malformed("'analysis' is missing or is not text")
        return {"analysis": analysis, self.field: self._checked_value(given[self.field])}

    def _check_alone(self, given: dict[str, Any], own: set[str]) -> None:
        """Refuse an object that has another verdict beside the one that was asked for."""
        words = _VERDICT_WORDS.union(each.casefold() for each in self.values if isinstance(each, str))
        for name, value in given.items():
            if name in own:
                continue
            is_verdict = isinstance(value, bool) or (
                isinstance(value, str) and value.strip().casefold() in words
            )
            other_scale = self.field == "score" and name in _LIMITS and value != max(self.values)
            if is_verdict or other_scale or _names_verdict(name):
                raise Malformed(f"the object has {name[:40]!r} beside {self.field!r}")
            for each in value if isinstance(value, list) else [value]:
                if isinstance(each, dict) and any(map(_names_verdict, each)):
                    raise Malformed(f"the object has a verdict in {name[:40]!r} beside {self.field!r}")

    def _checked_value(self, value: Any) -> Any:
        if self.field == "pass":
            return boolean(value, "'pass'")
        if self.field == "score":
            return integer(value, self.values, "'score'")
        if self.field == "choice":
            return one_of(value, self.values, "'choice'")
        if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
            raise Malformed(f"{self.field!r} is not a list of objects")
        verdict = "score" if self.scale else "pass"
        entry = {"claims": {"claim", "supported"}}.get(self.field) or (
            {"id", "label"}
            if self.labels
            else {"id", "requirement", "satisfied"}
            if self.evidence
            else {"criterion", verdict}
        )
        for each in value:
            self._check_alone(each, entry | {"analysis", "evidence", "quote", "steps"})
        if self.field == "claims":
            return self._claims(value)
        if self.labels:
            return self._read_labels(value)
        return self._requirements(value) if self.evidence else self._criteria(value)

    def _claims(self, value: list[dict[str, Any]]) -> list[dict[str, Any]]:
        out: list[dict[str, Any]] = []
        for number, each in enumerate(value, 1):
            claim = each.get("claim")
            if not isinstance(claim, str) or not claim.strip():
                raise Malformed(f"claim {number} has no text in 'claim'")
            out.append(
                {
                    "claim": claim.strip(),
                    "supported": boolean(each.get("supported"), f"'supported' of claim {number}"),
                }
            )
        if self.count is not None:
            if len(out) != self.count:
                raise Malformed(
                    f"there are {len(out)} claims and {self.count} were listed: judge each one once"
                )
            return self._in_order(out)
        if len(out) > MOST_CLAIMS:
            raise Malformed(f"there are {len(out)} claims, which is more than the statement makes")
        different: dict[str, dict[str, Any]] = {}
        for each in out:
            before = different.setdefault(_plain(each["claim"]), each)
            if before["supported"] != each["supported"]:
                before["supported"] = None  # both verdicts on one claim: it is undecided
        return list(different.values())

    def _in_order(self, claims: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Claims in the order of the list that was shown; a reply that mixes it up is put in order by the texts."""
        listed = [_plain(text) for text in self.texts]
        given = [_plain(each["claim"]) for each in claims]
        moved = [n for n, (a, b) in enumerate(zip(given, listed, strict=False)) if a != b and a in listed]
        if not moved:
            return claims
        if sorted(given) != sorted(listed) or len(set(listed)) != len(listed):
            raise Malformed(
                f"claim {moved[0] + 1} repeats the text of another claim: keep the order of the list"
            )
        return [claims[given.index(text)] for text in listed]

    def _requirements(self, value: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return verdicts by id: unknown ids are dropped, and two different verdicts on one id are an error."""
        out: dict[int, dict[str, Any]] = {}
        for each in value:
            number = each.get("id")
            named = each.get("requirement")
            meant = self.values[self.texts.index(named)] if named in self.texts else None
            if number is None:
                number = meant
            if isinstance(number, bool) or not isinstance(number, (int, float, str)):
                continue
            try:
                number = integer(number, self.values, "'id'")
            except Malformed:
                continue
            if meant is not None and meant != number and self.texts.count(named) == 1:
                raise Malformed(f"the verdict with the id {number} names requirement {meant}")
            evidence, quote, steps = each.get("evidence"), each.get("quote"), each.get("steps")
            if steps is None:
                steps = []
            if not isinstance(steps, list) or not all(
                _is_whole(step) and abs(step) <= LARGEST_STEP for step in steps
            ):
                raise Malformed(f"'steps' of verdict {number} is not a list of step numbers")
            verdict = {
                "id": number,
                "satisfied": boolean(each.get("satisfied"), f"'satisfied' of verdict {number}"),
                "evidence": evidence if isinstance(evidence, str) else "",
                "quote": quote if isinstance(quote, str) else "",
                "steps": [int(step) for step in steps],
            }
            if number in out and out[number]["satisfied"] != verdict["satisfied"]:
                raise Malformed(f"there are two different verdicts with the id {number}")
            out.setdefault(number, verdict)
        return [out[number] for number in sorted(out)]

    def _read_labels(self, value: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return one label for each numbered item. A number outside the list is refused, not dropped."""
        out: dict[int, dict[str, Any]] = {}
        for each in value:
            number = integer(each.get("id"), self.values, "'id'")
            if number in out:
                raise Malformed(f"there are two verdicts with the id {number}")
            analysis = each.get("analysis")
            label = one_of(each.get("label"), self.labels, f"'label' of item {number}")
            out[number] = {
                "id": number,
                "label": label,
                "analysis": analysis if isinstance(analysis, str) else "",
            }
        missing = [number for number in self.values if number not in out]
        if missing:
            raise Malformed(f"there is no verdict on item {missing[0]}")
        return [out[number] for number in self.values]

    def _criteria(self, value: list[dict[str, Any]]) -> list[dict[str, Any]]:
        out: dict[str, dict[str, Any]] = {}
        for each in value:
            name = each.get("criterion")
            if not isinstance(name, str) or name not in self.values:
                continue
            if self.scale:
                verdict: Any = {"score": integer(each.get("score"), self.scale, f"'score' of {name!r}")}
            else:
                verdict = {"pass": boolean(each.get("pass"), f"'pass' of {name!r}")}
            analysis = each.get("analysis")
            verdict = {
                "criterion": name,
                "analysis": analysis if isinstance(analysis, str) else "",
                **verdict,
            }
            field = "score" if self.scale else "pass"
            if name in out and out[name][field] != verdict[field]:
                raise Malformed(f"there are two different verdicts on {name!r}")
            out.setdefault(name, verdict)
        missing = [name for name in self.values if name not in out]
        if missing:
            raise Malformed(f"there is no verdict on {missing[0]!r}")
        return [out[name] for name in self.values]

    def probabilities(self, logprobs: Sequence[Mapping[str, Any]] | None, value: object) -> dict[str, float]:
        """Return the probability of each verdict at the verdict token of the reply; empty if it is unknown.

        They add up to 1 over the verdicts that the alternatives of that token name. A token that may begin several
        verdicts ("1" of 1 and 10) is not counted for either.
        """
        if not logprobs or self.field not in ("pass", "score", "choice"):
            return {}
        verdicts = ["true", "false"] if self.field == "pass" else [str(each) for each in self.values]
        written = "".join(str(each["token"]) for each in logprobs)
        places = list(re.finditer(rf'"{self.field}"\s*:\s*"?', written))
        if not places:
            return {}
        at, begin = places[-1].end(), 0
        for entry in logprobs:
            token = str(entry["token"])
            if begin <= at < begin + len(token):
                break
            begin += len(token)
        else:
            return {}
        before = at - begin
        mass: dict[str, float] = {}
        for text, logprob in {**(entry.get("top") or {}), token: entry["logprob"]}.items():
            rest = (text[before:] if text[:before] == token[:before] else text).strip(' :"},\n\t').casefold()
            meant = [each for each in verdicts if rest and each.casefold().startswith(rest)]
            if len(meant) == 1 and logprob <= 0:
                mass[meant[0]] = mass.get(meant[0], 0.0) + math.exp(logprob)
        own = str(value).lower() if isinstance(value, bool) else str(value)
        total = sum(mass.values())
        if own not in mass or total <= 0:
            return {}
        names = {"true": "pass", "false": "fail"} if self.field == "pass" else {}
        return {names.get(name, name): share / total for name, share in mass.items()}

    def _named_choice(self, text: str) -> str:
        """The one choice that a plain text names."""
        text = after_thinking(text)
        if len(text) > LONGEST_STATEMENT:
            raise Malformed("the reply has no JSON object, and its text is too long to choose clearly")
        rest, found = text, []
        for choice in sorted(self.values, key=len, reverse=True):
            pattern = re.compile(r"(?<!\w)" + re.escape(choice) + r"(?!\w)", re.IGNORECASE)
            if pattern.search(rest):
                found.append(choice)
                rest = pattern.sub(" ", rest)
        if len(found) == 1 and not _NEGATION.search(rest) and _is_named(text, found[0]):
            return str(found[0])
        raise Malformed(
            f"the reply names {len(found)} of the choices, not exactly one, and has no JSON object"
            if len(found) != 1
            else "the reply has no JSON object, and its text does not clearly choose"
        )


def _is_named(text: str, choice: str) -> bool:
    """Whether a sentence of a text states a choice, and does not only mention it, quote it or ask for it."""
    listed = r"(?!\s*,)" if choice.casefold() in _ORDINALS else ""
    written = re.sub(rf"\A[{_MARKUP}]+(?=.)", "", choice)
    pattern = re.compile(_LEAD + re.escape(written) + r"(?!\w)" + listed + _STANDS_ALONE, re.IGNORECASE)
    return any(pattern.match(sentence) for sentence in _SENTENCE.findall(text) if not sentence.endswith("?"))


def refuses(text: str) -> bool:
    """Whether a reply, or the analysis of a well-formed one, begins with a refusal to judge.

    A verdict beside it means nothing. Opening words such as "I can't" are not enough: "I can't find any mistake"
    judges.
    """
    return bool(_REFUSES.match(text))


def is_copied(analysis: str, material: Mapping[str, str]) -> bool:
    """Whether the judged material has a verdict with this analysis: a judge that repeats it has not judged."""
    written = {_squeezed(f'"analysis":{json.dumps(analysis, ensure_ascii=each)}') for each in (True, False)}
    return any(
        each in squeezed
        for text in material.values()
        if "analysis" in text
        for squeezed in (_squeezed(text),)
        for each in written
    )


def _squeezed(text: str) -> str:
    """A text without whitespace and backslashes: JSON in any layout, and inside of a text of other JSON."""
    return re.sub(r"[\s\\]+", "", text)


def boolean(value: object, what: str) -> bool:
    """True or false, also as text. 1, "yes" and other values that merely look like it are refused."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.strip().lower() in ("true", "false"):
        return value.strip().lower() == "true"
    raise Malformed(f"{what} is not true or false")


def integer(value: object, allowed: Sequence[Any], what: str) -> int:
    """Read one of the valid integers; a float without fraction and digits as text are accepted."""
    number: Any = value
    if isinstance(value, str) and re.fullmatch(r"-?\d{1,6}", value.strip(), re.ASCII):
        number = int(value)
    if isinstance(number, bool) or not _is_whole(number) or int(number) not in allowed:
        raise Malformed(f"{what} is not one of {', '.join(map(str, allowed))}")
    return int(number)


def one_of(value: object, choices: Sequence[str], what: str) -> str:
    """Return the chosen value, ignoring case."""
    if isinstance(value, bool):  # a model that reads yes as YAML does
        value = "yes" if value else "no"
    if isinstance(value, (str, int, float)):
        text = str(value).strip()
        if text in choices:
            return text
        folded = [choice for choice in choices if choice.casefold() == text.casefold()]
        if len(folded) == 1:
            return folded[0]
    raise Malformed(f"{what} is not one of {', '.join(choices)}")


def _is_whole(value: Any) -> bool:
    if isinstance(value, bool):
        return False
    return isinstance(value, int) or (isinstance(value, float) and value.is_integer())


def after_thinking(text: str) -> str:
    """The text after the last closed block of thinking. A block that is not closed ends no reply: Malformed."""
    ends = list(_THINKING.finditer(text))
    rest = text[ends[-1].end() :] if ends else text
    if _OPEN_THINKING.search(rest) or _CHANNEL.search(rest):
        raise Malformed("the reply ends in the middle of thinking: end it with the JSON object")
    return rest


def _objects(text: str, field: str) -> list[dict[str, Any]]:
    """The objects with the field, in order; empty unless the last one ends the reply."""
    if len(text) > LONGEST:
        raise Malformed(f"the reply has {len(text):,} characters, which is more than a verdict needs")
    stripped = text.strip()
    if stripped.startswith("{"):
        try:
            # The whole reply is one object: then nothing inside of its texts counts.
            whole, end = _decode_object(stripped, 0)
            if end == len(stripped):
                return [whole] if field in whole else []
        except Malformed:
            raise
        except ValueError:  # no JSON, or a number of thousands of digits
            pass
    text = after_thinking(text)
    found: list[dict[str, Any]] = []
    at, last, tries, searched = 0, 0, 0, 0
    while (at := text.find("{", at)) >= 0:
        tries += 1
        if tries > MOST_BRACES or searched > MOST_SEARCHED:
            raise Malformed("the reply has too many braces to find the verdict")
        try:
            value, end = _decode_object(text, at)
        except Malformed:
            raise
        except ValueError as error:
            searched += _read_until(error, text) - at
            at += 1
            continue
        last, at = end, end
        if field in value:
            found.append(value)
            closing = end
        elif any(map(_names_verdict, value)):
            raise Malformed(f"the reply has an object with another verdict than {field!r}")
    if not found:
        return []
    if closing != last or not _TRAILING.match(text, closing):
        raise Malformed("text follows the JSON object with the verdict: end the reply with the object")
    return found


def _read_until(error: ValueError, text: str) -> int:
    """Return how far the decoder read before it failed: to the end for an open string or a very long number."""
    if not isinstance(error, json.JSONDecodeError) or error.msg.startswith("Unterminated string"):
        return len(text)
    return error.pos


def _decode_object(text: str, at: int) -> tuple[dict[str, Any], int]:
    """The JSON object that begins at a place, and where it ends.

    Its depth is bounded here, because the depth that Python reads depends on its version: 1,000 levels or 10,000.
    """
    try:
        value, end = _decoder.raw_decode(text, at)
    except RecursionError:
        raise Malformed("the reply is nested too deeply") from None
    if is_too_deep(value):
        raise Malformed("the reply is nested too deeply")
    return value, end


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) != len(pairs):
        counts = Counter(name for name, _ in pairs)
        twice = next(name for name, count in counts.items() if count > 1)
        raise Malformed(f"the key {twice[:40]!r} occurs twice in one object")
    for name in out:
        if name not in _OWN and _plain(name) in _OWN:
            raise Malformed(f"the key {name[:40]!r} looks like {_plain(name)!r}: write it exactly")
    return out


_OWN = frozenset(
    {
        *FIELDS,
        "analysis",
        "claim",
        "supported",
        "satisfied",
        "id",
        "criterion",
        "label",
        "evidence",
        "quote",
        "steps",
    }
)


def _plain(text: str) -> str:
    """A text without case, spaces at its ends, invisible characters and compatibility forms."""
    visible = "".join(c for c in nfkc(text) if unicodedata.category(c) != "Cf")
    return " ".join(visible.split()).casefold()


def _names_verdict(name: str) -> bool:
    """Whether a key is a word for a verdict, in any spelling."""
    return re.sub(r"[\W_]+", "_", _plain(name)).strip("_") in _ALL_NAMES


_ALL_NAMES = _VERDICT_NAMES.union(FIELDS, ("supported", "satisfied", "label"))


def _no_constant(name: str) -> Any:
    raise Malformed(f"{name} is not JSON")


_decoder = json.JSONDecoder(object_pairs_hook=_no_duplicates, parse_constant=_no_constant, strict=False)


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def reply_schema_text(contract: Contract) -> str:
    """The schema in words, for a model that returns nothing when its provider holds it to one."""
    return "The object has to fit this JSON Schema:\n" + json.dumps(contract.schema(), ensure_ascii=False)
