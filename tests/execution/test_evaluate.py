"""The evaluation stage: single outputs, pairs, all runs at once, amending, and what is not computed twice."""

from __future__ import annotations

import asyncio
import threading

import pytest

import karat
from karat import NotApplicable, Result
from karat.errors import Aborted, RequestError, StoreBusy, StoreError
from karat.evaluators import Evaluator, LLMJudge
from karat.records import Failed, Ok, Skipped
from karat.tasks import FunctionTask
from karat.testing import FakeProvider


@pytest.fixture
def store(tmp_path):
    with karat.open_store(tmp_path / "karat.db") as opened:
        yield opened


DATA = [{"id": f"e{i}", "input": i, "expected": i} for i in range(6)]


def run_adding(store, amount, broken=(), count=6, **options):
    def add(number):
        if number in broken:
            raise ValueError("broken")
        return number + amount

    task = FunctionTask(add, name=f"add {amount}")
    task.code = lambda: f"add {amount}"
    return karat.run(task, karat.Dataset.from_examples(DATA[:count], name="numbers"), store=store, **options)


def equal(outputs, expected):
    return outputs == expected


def statuses(evaluation):
    return [result.outcome.status for result in evaluation.results()]


class Closer:
    """Compares two outputs by their distance to what is expected; counts its calls."""

    version = "1"
    key = "closer"

    def __init__(self):
        self.calls = []
        self.broken = set()

    def compare(self, example, first, second):
        self.calls.append((example.id, first.value, second.value))
        if example.id in self.broken:
            raise RuntimeError("the judge is down")
        a, b = abs(first.value - example.expected), abs(second.value - example.expected)
        return "win" if a < b else "loss" if b < a else "tie"


# ------------------------------------------------------------------ single outputs


def test_a_function_judges_each_output(store):
    evaluation = karat.evaluate(run_adding(store, 0), [equal])
    results = list(evaluation.results())
    assert [r.score for r in results] == [1.0] * 6
    assert [r.example for r in results] == [f"e{i}" for i in range(6)]
    assert (evaluation.status, evaluation.counts.total) == ("success", 6)
    assert evaluation.runs[0].id == results[0].runs[0]


@pytest.mark.parametrize("kind", ["sync", "async", "batched"])
def test_evaluators_sync_async_and_batched_give_the_same(store, kind):
    class Same(Evaluator):
        name = "same"
        is_async = kind == "async"
        batched = kind == "batched"

        def evaluate(self, *, outputs, reference_outputs=None, inputs=None, **context):
            if outputs == 3:
                raise ValueError("three is not judged")
            if outputs == 4:
                raise NotApplicable("four is another evaluator's business")
            return Result("same", float(outputs == reference_outputs), comment=f"{context['example'].id}")

        async def evaluate_async(self, **arguments):
            await asyncio.sleep(0)
            return self.evaluate(**arguments)

    evaluation = karat.evaluate(run_adding(store, 0), [Same()])
    outcomes = [result.outcome for result in evaluation.results()]
    assert outcomes[3] == Failed(outcomes[3].error)
    assert outcomes[3].error.message == "three is not judged"
    assert outcomes[4] == Skipped("four is another evaluator's business", applicable=False)
    assert [o.value.score for o in outcomes if isinstance(o, Ok)] == [1.0] * 4
    counts = evaluation.counts
    assert (counts.ok, counts.failed, counts.skipped, counts.not_applicable, counts.pending) == (
        4,
        1,
        1,
        1,
        0,
    )
    assert evaluation.status == "partial"


def test_values_are_decoded_to_the_types_a_function_annotates(store):
    import msgspec

    class Number(msgspec.Struct):
        value: int

    def judge(outputs, expected):
        return outputs.value == expected

    judge.__annotations__ = {"outputs": Number}
    task = FunctionTask(lambda number: {"value": number}, name="wrapped")
    run = karat.run(task, karat.Dataset.from_examples(DATA), store=store)
    assert [r.score for r in karat.evaluate(run, [judge]).results()] == [1.0] * 6


def test_not_applicable_alone_does_not_spoil_an_evaluation(store):
    def picky(outputs):
        if outputs == 2:
            raise NotApplicable("two")
        return 1.0

    evaluation = karat.evaluate(run_adding(store, 0), [picky])
    assert (evaluation.status, evaluation.counts.skipped) == ("success", 1)


def test_an_error_in_a_result_is_a_failure_and_never_a_score(store):
    def judge(outputs):
        return Result("judge", score=0.0, error="the judge gave no verdict") if outputs == 1 else 1.0

    evaluation = karat.evaluate(run_adding(store, 0), [judge])
    failed = [r for r in evaluation.results() if isinstance(r.outcome, Failed)]
    assert [f.outcome.error.message for f in failed] == ["the judge gave no verdict"]
    assert failed[0].score is None


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), object()])
def test_a_value_that_is_not_a_score_is_a_failure(store, bad):
    def judge(outputs):
        return bad

    evaluation = karat.evaluate(run_adding(store, 0), [judge])
    assert statuses(evaluation) == ["failed"] * 6


def test_the_result_of_a_failed_output_is_skipped(store):
    evaluation = karat.evaluate(run_adding(store, 0, broken={2}), [equal])
    assert [r.outcome for r in evaluation.results()][2] == Skipped("output failed")
    assert (evaluation.status, evaluation.counts.skipped, evaluation.counts.not_applicable) == (
        "partial",
        1,
        0,
    )


def test_names_parameters_and_keys(store, refuses):
    evaluation = karat.evaluate(
        run_adding(store, 0), ["exact_match", {"name": "edit_distance", "key": "close"}]
    )
    assert [spec.key for spec in evaluation.header.evaluators] == ["exact_match", "close"]
    with refuses(RequestError):
        karat.evaluate(run_adding(store, 0), ["exact_match", "exact_match"])
    with refuses(RequestError):
        karat.evaluate(run_adding(store, 0), ["exact_mach"])


def test_attempts_and_several_runs_are_items_of_their_own(store):
    runs = [run_adding(store, 0, attempts=2), run_adding(store, 1)]
    evaluation = karat.evaluate(runs, [equal])
    assert evaluation.counts.total == 6 * 2 + 6
    assert {r.runs for r in evaluation.results()} == {(runs[0].id,), (runs[1].id,)}


def test_runs_of_different_datasets_are_refused_together(store):
    with pytest.raises(RequestError, match="different datasets"):
        karat.evaluate([run_adding(store, 0), run_adding(store, 0, count=5)], [equal])


# ------------------------------------------------------------------ what is computed again


def test_a_finished_evaluation_is_returned_and_a_changed_evaluator_is_another(store):
    run = run_adding(store, 0)
    first = karat.evaluate(run, ["exact_match"])
    assert karat.evaluate(run, ["exact_match"]).id == first.id
    assert karat.evaluate(run, [{"name": "exact_match", "params": {"case_sensitive": False}}]).id != first.id


class Costly(Evaluator):
    """Stands for a judge that costs money: counts what it is really asked."""

    name = "costly"
    version = "1"

    def __init__(self):
        super().__init__()
        self.calls = 0

    def evaluate(self, *, outputs, reference_outputs=None, inputs=None, **context):
        self.calls += 1
        return Result("costly", float(outputs == reference_outputs))

    def configuration(self):
        return {}


def test_one_more_evaluator_computes_only_the_new_results(store):
    costly, run = Costly(), run_adding(store, 0)
    first = karat.evaluate(run, [costly])
    second = karat.evaluate(run, [costly, equal])
    assert costly.calls == 6
    assert (second.counts.ok, second.counts.reused) == (12, 6)
    copied = [r for r in second.results() if r.reused_from]
    assert {r.reused_from for r in copied} == {first.id}


def test_only_ok_results_of_exactly_the_same_content_are_reused(store):
    costly = Costly()
    karat.evaluate(run_adding(store, 0), [costly])
    other = karat.evaluate(run_adding(store, 1), [costly])
    assert (costly.calls, other.counts.reused) == (12, 0)


def test_results_that_were_skipped_are_computed_once_their_output_is_there(store):
    run = run_adding(store, 0, broken={1, 2})
    first = karat.evaluate(run, ["exact_match"])
    assert first.counts.skipped == 2
    run = run_adding(store, 0, broken={2}, retry_failed=True)
    again = karat.evaluate(run, ["exact_match"])
    assert again.id == first.id
    assert (again.counts.ok, again.counts.skipped, again.counts.total) == (5, 1, 6)


def test_failed_results_are_tried_again_only_when_asked(store):
    broken = {2}

    class Fragile(Costly):
        name = "fragile"

        def evaluate(self, *, outputs, **context):
            self.calls += 1
            if outputs in broken:
                raise RuntimeError("down")
            return Result("fragile", 1.0)

    judge, run = Fragile(), run_adding(store, 0)
    first = karat.evaluate(run, [judge])
    assert first.counts.failed == 1
    broken.clear()
    assert karat.evaluate(run, [judge]).counts.failed == 1
    again = karat.evaluate(run, [judge], retry_failed=True)
    assert (again.id, again.counts.ok, again.counts.failed, judge.calls) == (first.id, 6, 0, 7)


def test_an_evaluation_of_an_unfinished_run_is_partial_and_can_be_added_to(store):
    def stops(number):
        if number >= 3:
            raise StoreError("gone")
        return number

    task = FunctionTask(stops, name="add 0")
    task.code = lambda: "add 0"
    with pytest.raises(StoreError):
        karat.run(task, karat.Dataset.from_examples(DATA, name="numbers"), store=store, concurrency=1)
    first = karat.evaluate(store.runs.get("latest"), ["exact_match"])
    assert (first.counts.ok, first.counts.pending, first.status) == (3, 3, "partial")
    run = run_adding(store, 0)
    second = karat.evaluate(run, ["exact_match"])
    assert (second.id, second.counts.ok, second.status) == (first.id, 6, "success")


def test_a_judge_that_cannot_be_stopped_is_marked_failed_abandoned_and_counted(store):
    release = threading.Event()

    def stuck(outputs):
        if outputs == 2:
            release.wait(60)
        return 1.0

    evaluation = karat.evaluate(run_adding(store, 0), [stuck], timeout=0.1)
    release.set()
    assert (evaluation.counts.ok, evaluation.counts.failed) == (5, 1)
    assert evaluation.header.metadata["abandoned_threads"] == 1


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (ValueError("the batch is lost"), "failed"),
        ([0.5], "failed"),
        ([object()] * 6, "failed"),
        ([ValueError("one")] * 6, "failed"),
        ([True] * 6, "ok"),
    ],
)
def test_what_a_batched_evaluator_gives_or_raises_is_kept_for_each_item(store, given, expected, says):
    class Many(Evaluator):
        name = "many"
        version = "1"
        batched = True

        def evaluate_many(self, items):
            if isinstance(given, Exception):
                raise given
            return given

    evaluation = karat.evaluate(run_adding(store, 0), [Many()])
    outcomes = [result.outcome for result in evaluation.results()]
    assert [outcome.status for outcome in outcomes] == [expected] * 6
    [said] = {outcome.error.message if isinstance(outcome, Failed) else None for outcome in outcomes}
    says(said)


def test_an_evaluator_that_raises_no_exception_fails_its_item_only(store):
    class Panic(BaseException):
        pass

    def judge(outputs):
        if outputs == 3:
            raise Panic("out of bounds")
        return 1.0

    evaluation = karat.evaluate(run_adding(store, 0), [judge])
    assert (evaluation.counts.ok, evaluation.counts.failed) == (5, 1)


def test_an_interrupted_comparison_expects_the_shared_items(store):
    class Down(Closer):
        def compare(self, example, first, second):
            raise StoreError("the disk is gone")

    first, second = run_adding(store, 0, limit=4), run_adding(store, 1, limit=4, offset=2)
    with pytest.raises(StoreError):
        karat.evaluate([first, second], [Down()])
    assert store.evaluations.get("latest").counts.pending == 2


def test_adding_to_an_evaluation_that_somebody_holds_can_wait(store, monkeypatch):
    from karat.execution import pipeline
    from karat.store.lease import Held

    monkeypatch.setattr(pipeline, "WAIT_SECONDS", 0)
    run = run_adding(store, 0, broken={2})
    evaluation = karat.evaluate(run, [equal])
    run_adding(store, 0, retry_failed=True)
    held = Held.take(store.backend, evaluation.number)
    take, tries = Held.take, []

    def counted(*given):
        tries.append(given)
        if len(tries) == 3:
            held.release()
        return take(*given)

    monkeypatch.setattr(Held, "take", counted)
    with pytest.raises(StoreBusy):
        karat.evaluate(run, [equal])
    assert karat.evaluate(run, [equal], wait=True).counts.ok == 6


def test_abort_on_error_stops_an_evaluation(store):
    def judge(outputs):
        raise ValueError("no")

    with pytest.raises(Aborted, match="ValueError: no"):
        karat.evaluate(run_adding(store, 0), [judge], abort_on_error=True, concurrency=1)
    assert store.evaluations.get("latest").counts.pending > 0


# ------------------------------------------------------------------ pairs, all runs at once, amending


def test_pairs_of_runs_are_compared_attempt_against_attempt(store):
    runs = [run_adding(store, amount, attempts=2) for amount in (0, 2, -1)]
    evaluation = karat.evaluate(runs, [Closer()])
    assert evaluation.counts.total == 3 * 6 * 2
    verdicts = {(r.runs, r.result.value) for r in evaluation.results()}
    a, b, c = (run.id for run in runs)
    assert verdicts == {((a, b), "win"), ((a, c), "win"), ((b, c), "loss")}


def test_an_evaluator_may_see_both_orders(store):
    class Both(Closer):
        both_orders = True

    evaluation = karat.evaluate([run_adding(store, 0), run_adding(store, 1)], [Both()])
    assert evaluation.counts.total == 12


def test_a_verdict_that_is_none_fails(store):
    class Vague:
        version = "1"

        def compare(self, example, first, second):
            return "perhaps"

    evaluation = karat.evaluate([run_adding(store, 0), run_adding(store, 1)], [Vague()])
    assert set(statuses(evaluation)) == {"failed"}


def test_all_runs_of_an_example_at_once(store):
    class Ranks:
        key = "ranks"
        version = "1"

        async def evaluate_runs(self, example, outputs):
            order = sorted(range(len(outputs)), key=lambda i: abs(outputs[i].value - example.expected))
            return Result("ranks", value=order)

    runs = [run_adding(store, amount) for amount in (3, 0, 1)]
    evaluation = karat.evaluate(runs, [Ranks()])
    assert evaluation.counts.total == 6
    assert {tuple(r.result.value) for r in evaluation.results()} == {(1, 2, 0)}


def test_a_pair_with_a_failed_output_is_skipped_and_says_which(store, says):
    runs = [run_adding(store, 0), run_adding(store, 1, broken={4})]
    evaluation = karat.evaluate(runs, [Closer()])
    skipped = [r.outcome.reason for r in evaluation.results() if isinstance(r.outcome, Skipped)]
    [reason] = skipped
    assert runs[1].id in reason
    says(reason)


def test_amending_two_comparisons_with_a_new_run_compares_only_what_is_missing(store):
    a, b, c, d = (run_adding(store, amount) for amount in (0, 1, 2, 3))
    judge = Closer()
    first = karat.evaluate([a, b], [judge])
    second = karat.evaluate([c, a], [judge])
    assert len(judge.calls) == 12
    amended = karat.evaluate(d, [judge], amend=[first, second])
    assert amended.header.runs == [a.id, b.id, c.id, d.id]
    assert amended.counts.total == 6 * 6
    assert amended.counts.reused == 12
    assert len(judge.calls) == 12 + 6 * 4
    pairs = {r.runs for r in amended.results()}
    assert (c.id, a.id) in pairs
    assert (a.id, c.id) not in pairs
    assert len(set(judge.calls)) == len(judge.calls)


def test_amending_keeps_what_succeeded_and_tries_what_failed_again(store):
    a, b, c = (run_adding(store, amount) for amount in (0, 1, 2))
    judge = Closer()
    judge.broken = {"e1"}
    first = karat.evaluate([a, b], [judge])
    assert first.counts.failed == 1
    judge.broken = set()
    amended = karat.evaluate(c, [judge], amend=first)
    assert (amended.counts.ok, amended.counts.reused, amended.counts.failed) == (18, 5, 0)


def test_a_pair_that_is_tried_again_stays_in_the_order_it_was_tried_in(store):
    """The amended evaluation shows the pair the other way round, and succeeds only after this one failed."""
    one, two, three = (run_adding(store, amount) for amount in (0, 1, 2))
    judge = Closer()
    judge.broken = {"e1"}
    base = karat.evaluate([one, two], [judge])
    turned = karat.evaluate([three, one], [judge])
    amended = karat.evaluate([], [judge], amend=[base, turned])
    assert (amended.counts.ok, amended.counts.failed) == (15, 3)
    judge.broken = set()
    karat.evaluate([three, one], [judge], retry_failed=True)
    amended = karat.evaluate([], [judge], amend=[base, turned], retry_failed=True)
    assert (amended.counts.ok, amended.counts.failed, amended.counts.total) == (18, 0, 18)
    assert len(list(amended.results())) == 18


def test_amending_uses_the_evaluators_of_before_where_none_are_named(store):
    a, b = run_adding(store, 0), run_adding(store, 1)
    first = karat.evaluate(a, ["exact_match"])
    amended = karat.evaluate(b, amend=[first.id], store=store)
    assert [spec.key for spec in amended.header.evaluators] == ["exact_match"]
    assert amended.counts.total == 12


def test_lineage_goes_both_ways(store):
    a, b = run_adding(store, 0), run_adding(store, 1)
    first = karat.evaluate([a], ["exact_match"])
    amended = karat.evaluate(b, amend=first)
    aggregation = karat.aggregate(amended, ["accuracy"])
    assert set(store.parents(amended.id)) == {a.id, b.id, first.id}
    assert set(store.descendants(a.id)) == {first.id, amended.id, aggregation.id}
    assert a.id in store.children(a.dataset.id)


def test_an_evaluation_without_outputs_or_judges_is_refused(store):
    with pytest.raises(RequestError, match="no evaluator"):
        karat.evaluate(run_adding(store, 0), [])
    with pytest.raises(RequestError, match="no run"):
        karat.evaluate([], ["exact_match"], store=store)


def test_a_retry_that_only_read_cached_replies_says_how_to_ask_again(store, says):
    run = run_adding(store, 0, count=2)
    with FakeProvider("no verdict") as server:
        judge = LLMJudge(criterion="It is a number.", judge=server.spec())
        assert karat.evaluate(run, [judge]).counts.failed == 2
        asked = server.count
        again = karat.evaluate(run, [judge], retry_failed=True)
        assert (again.counts.failed, server.count) == (2, asked)
        says(again.notice.partition(": ")[2])
        server.script.answers = '{"analysis": "It is.", "pass": true}'
        again = karat.evaluate(run, [judge], retry_failed=True, cache="refresh")
        assert (again.counts.ok, server.count) == (2, asked + 2)
        says(again.notice.partition(": ")[2])
