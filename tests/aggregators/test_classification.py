"""Precision, recall and F1 from golden and predicted labels, against scikit-learn."""

from __future__ import annotations

import random

import pytest
from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

from karat.records import format_estimate

CLASSES = ["Art", "Music", "Other", "Politics"]


@pytest.fixture(scope="module")
def pairs():
    rng = random.Random(3)
    golden = [rng.choices(CLASSES, [1, 5, 3, 2])[0] for _ in range(400)]
    return [(g, g if rng.random() < 0.7 else rng.choice(CLASSES[:3])) for g in golden]


@pytest.mark.parametrize("metric", ["precision", "recall", "f1_score"])
def test_values_and_averages_are_those_of_scikit_learn(make, pairs, metric):
    golden, predicted = zip(*pairs, strict=True)
    made = make.folded(metric, make.labelled(pairs))
    at = ["precision", "recall", "f1_score"].index(metric)
    for average in ("macro", "micro", "weighted"):
        want = precision_recall_fscore_support(golden, predicted, average=average, zero_division=0)[at]
        estimate = made.get(average)
        assert estimate.value == pytest.approx(want, abs=1e-12)
        assert estimate.low < want < estimate.high
        assert (estimate.n, estimate.of) == (400, 400)
    each = precision_recall_fscore_support(golden, predicted, labels=CLASSES, zero_division=0)[at]
    for name, want in zip(CLASSES, each, strict=True):
        assert (made.get(group={"class": name}).value or 0.0) == pytest.approx(want, abs=1e-12)
    assert made.get().about(name="macro") == made.get("macro")
    assert made.tables[0].value["labels"] == CLASSES
    assert made.tables[0].value["matrix"] == confusion_matrix(golden, predicted, labels=CLASSES).tolist()


def test_all_at_once(make, pairs):
    whole = make.folded("classification", make.labelled(pairs))
    alone = make.folded("f1_score", make.labelled(pairs)).get("macro")
    assert whole.get("macro_f1") == alone.about(name="macro_f1")
    assert whole.get("accuracy").value == sum(g == p for g, p in pairs) / 400
    assert whole.get("recall", group={"class": "Music"}).n == sum(g == "Music" for g, _ in pairs)


def test_the_average_of_the_seeds_is_over_what_was_predicted_or_is_golden(make):
    pairs = [("a", "a"), ("b", "a"), ("c", "c")]  # b is never predicted
    assert make.folded("precision", make.labelled(pairs)).get().value == pytest.approx((0.5 + 0 + 1) / 3)
    seed = make.folded("precision", make.labelled(pairs), average="seed").get()
    assert seed.value == pytest.approx((0.5 + 1) / 2)
    recall = make.folded("recall", make.labelled([("a", "a"), ("a", "b")]), average="seed").get()
    assert recall.value == 0.5  # b is predicted and never golden


def test_labels_are_the_same_class_when_the_unit_metric_says_so(make):
    rows = [
        [make.item(1.0, golden="Music", predicted="music ", validator="exact_match", case_sensitive=False)],
        [make.item(0.0, golden="art", predicted="MUSIC", validator="exact_match", case_sensitive=False)],
        [make.item(1.0, golden="Art", predicted="Art", validator="exact_match", case_sensitive=False)],
    ]
    made = make.folded("recall", rows)
    assert made.tables[0].value["labels"] == ["Art", "Music"]
    assert made.tables[0].value["matrix"] == [[1, 1], [0, 1]]
    strict = make.folded("recall", make.labelled([("Music", "music"), ("Music", "Music")]))
    assert strict.tables[0].value["labels"] == ["Music", "music"]


def test_a_prediction_that_was_judged_right_is_of_the_golden_class(make):
    rows = [[make.item(1.0, golden="Politics", predicted="Politic", validator="fuzzy_match")]]
    assert make.folded("precision", rows).tables[0].value["labels"] == ["Politics"]


def test_labels_are_fields_of_objects(make):
    rows = [[make.item(1.0, golden={"text": "a", "n": 1}, predicted={"text": "a"})],
            [make.item(0.0, golden={"text": "b"}, predicted={"other": "b"})]]  # fmt: skip
    made = make.folded("recall", rows, golden_key="text", predicted_key="text")
    assert made.get(group={"class": "b"}).value == 0.0
    assert "(no prediction)" in made.tables[0].value["labels"]


PREDICTED = [("A", "A"), ("A", "A"), ("B", "B"), ("B", "A"), ("C", "A")]


@pytest.mark.parametrize("metric", ["precision", "recall", "f1_score", "classification"])
def test_a_predicted_key_that_no_prediction_has_is_refused(make, metric, refuses):
    rows = [[make.item(float(g == p), golden={"text": g}, predicted={"text": p})] for g, p in PREDICTED]
    make.folded(metric, rows, golden_key="text", predicted_key="text")
    with refuses(ValueError):
        make.folded(metric, rows, golden_key="text", predicted_key="txt")
    right = [row for row, (golden, predicted) in zip(rows, PREDICTED, strict=True) if golden == predicted]
    with refuses(ValueError):
        make.folded(metric, right, golden_key="text", predicted_key="txt")
    with refuses(ValueError):
        make.folded(metric, rows, golden_key="txt", predicted_key="text")


@pytest.mark.parametrize("predicted", [{"other": "a"}, {"text": None}, None])
def test_a_correct_result_whose_prediction_lacks_the_field_is_missing(make, predicted):
    rows = [
        [make.item(1.0, golden={"text": "a"}, predicted={"text": "a"})],
        [make.item(1.0, golden={"text": "a"}, predicted=predicted)],
    ]
    made = make.folded("precision", rows, golden_key="text", predicted_key="text")
    assert (made.get().n, made.get().of) == (1, 2)


def test_bounds_of_averages_over_classes_say_what_they_assume(make):
    rows = [*make.labelled([("a", "a")] * 4), *([make.item(failed=True)] for _ in range(4))]
    made = make.folded("recall", rows)
    assert (made.get("macro").lowest, made.get("macro").highest) == (0.5, 1.0)
    assumed = "missing items are of the classes seen"  # with four other classes it would be 0.2
    assert made.get("macro").metadata["bounds_assume"] == assumed
    assert format_estimate(made.get("macro")).endswith(f"missing if {assumed}")
    for estimate in (made.get("micro"), made.get("weighted"), made.get(group={"class": "a"})):
        assert "bounds_assume" not in estimate.metadata  # these hold for any classes
    assert "bounds_assume" not in make.folded("recall", make.labelled([("a", "a")])).get().metadata


def test_a_missing_prediction_is_wrong_and_has_no_class(make):
    pairs = [("a", "a"), ("b", "b"), ("a", None)]
    made = make.folded("recall", make.labelled(pairs))
    assert made.get("macro").value == pytest.approx((0.5 + 1.0) / 2)
    assert made.get("micro").value == pytest.approx(2 / 3)
    assert {"class": "(no prediction)"} not in [each.group for each in made.estimates]


def test_failed_items_stay_in_the_denominator(make):
    rows = [*make.labelled([("a", "a"), ("b", "a")]), [make.item(failed=True)], [make.item(1.0, value=True)]]
    estimate = make.folded("f1_score", rows).get("micro")
    assert (estimate.n, estimate.of) == (2, 4)


def test_results_without_labels_say_what_is_needed(make, refuses):
    with refuses(ValueError):
        make.folded("f1_score", [[make.item(1.0)]])


def test_a_wrong_result_with_the_right_label_is_refused(make, refuses):
    with refuses(ValueError):
        make.folded("precision", [[make.item(0.0, golden="click", predicted="click")]])


def test_attempts_are_clustered_by_example_and_examples_by_a_field(make):
    rows = [
        [make.item(float(i % 2), attempt=a, golden="a", predicted="ab"[i % 2 == 0]) for a in range(4)]
        for i in range(30)
    ]
    clustered = make.folded("recall", rows).get("micro")
    assert clustered.metadata["clusters"] == 30
    assert clustered.metadata["design_effect"] > 3
    alone = [
        ({"doc": f"d{i // 4}"}, row)
        for i, row in enumerate(make.labelled([("a", "ab"[i // 4 % 2]) for i in range(40)]))
    ]
    by_document = make.folded("recall", alone, cluster="doc").get("micro")
    assert by_document.metadata["clusters"] == 10
    assert by_document.metadata["note"].startswith("few clusters (10)")
    noted = [each for each in make.folded("recall", alone, cluster="doc").estimates if each.value is not None]
    assert all("note" in each.metadata for each in noted)
    assert not any("note" in each.metadata for each in make.folded("recall", rows[:20]).estimates)
    assert by_document.high - by_document.low > 1.5 * (lambda e: e.high - e.low)(
        make.folded("recall", alone).get("micro")
    )


def test_an_average_that_is_not_known_names_the_nearest(refuses):
    from karat.aggregators._base import resolve_aggregator
    from karat.errors import RequestError

    with refuses(RequestError):
        resolve_aggregator({"name": "precision", "params": {"average": "makro"}})


@pytest.mark.parametrize("cluster", [None, "document"])
@pytest.mark.parametrize("attempts", [1, 3])
@pytest.mark.parametrize("seed", range(5))
def test_the_share_of_right_items_is_the_same_number_with_the_same_interval_everywhere(
    make, seed, attempts, cluster
):
    """`accuracy`, the `mean` of its scores, and `classification`, also as its micro average and weighted recall."""
    rng = random.Random(seed)
    groups = []
    for place in range(24):
        rows = []
        for attempt in range(1, attempts + 1):
            golden = rng.choice(CLASSES)
            predicted = golden if rng.random() < 0.7 else rng.choice(CLASSES[:3])
            labels = {"golden": golden, "predicted": predicted}
            score = float(golden == predicted)
            rows.append(make.item(score, attempt=attempt, failed=rng.random() < 0.2, **labels))
        groups.append(({"document": place // 3}, rows))
    params = {"cluster": cluster} if cluster else {}
    classes = make.folded("classification", groups, **params)
    names = ("accuracy", "micro_precision", "micro_f1", "weighted_recall")
    found = [classes.get(name) for name in names]
    found.append(make.folded("accuracy", groups, **params).get())
    if attempts > 1 or cluster:
        found.append(make.folded("mean", groups, **params).get())
    if not cluster:
        found.append(make.folded("metric:accuracy", groups).get("accuracy"))
    figures = {(each.value, each.low, each.high, each.n, each.of) for each in found}
    assert len(figures) == 1
    bounds = {(each.lowest, each.highest) for each in found if each.n < each.of}
    assert len(bounds) == (found[0].n < found[0].of)
