"""Plots as marks: places that match the numbers, words for everything, and SVG that is well formed."""

from __future__ import annotations

import math
import re
from itertools import pairwise
from xml.etree import ElementTree

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from karat.analysis.judges.agreement import CalibrationBin
from karat.analysis.outcomes import FailureKind
from karat.records import Estimate
from karat.reporting.marks import (
    Circle,
    Line,
    Plot,
    PlotRow,
    Point,
    Rect,
    Text,
    bars,
    calibration,
    confusion,
    failures,
    fitted,
    forest,
    nice_ticks,
    scatter,
    svg,
    text_width,
)
from tests.hostile import HOSTILE

numbers = st.floats(-1e6, 1e6, allow_nan=False)


@given(numbers, numbers)
def test_ticks_are_round_and_inside(a, b):
    low, high = min(a, b), max(a, b)
    if high - low < 1e-6 * max(1.0, abs(low), abs(high)):
        return
    ticks = nice_ticks(low, high)
    assert 2 <= len(ticks) <= 7
    room = (high - low) * 1e-6
    assert all(low - room <= tick <= high + room for tick in ticks)
    steps = {round((y - x) / (ticks[1] - ticks[0]), 6) for x, y in pairwise(ticks)}
    assert steps == {1.0}


def circles(plot: Plot) -> list[Circle]:
    return [mark for mark in plot.marks if isinstance(mark, Circle)]


def texts(plot: Plot) -> str:
    return "\n".join(mark.text for mark in plot.marks if isinstance(mark, Text))


def test_a_forest_places_values_in_their_order():
    rows = [
        PlotRow(name, Estimate(v, v - 0.05, v + 0.05, 100, 100))
        for name, v in (("a", 0.5), ("b", 0.7), ("c", 0.6))
    ]
    plot = forest("accuracy", rows)
    a, b, c = circles(plot)
    assert a.x < c.x < b.x
    assert a.y < b.y < c.y
    assert math.isclose(c.x - a.x, b.x - c.x, rel_tol=1e-6)
    assert "0.700 [0.650, 0.750]" in texts(plot)
    assert "n 100" in texts(plot)
    assert "b: 0.700" in plot.description


def test_a_side_without_a_limit_is_an_arrow_and_words(says):
    plot = forest(
        "x",
        [PlotRow("open", Estimate(0.5, 0.4, None, 9, 9)), PlotRow("closed", Estimate(0.5, 0.4, 0.6, 9, 9))],
    )
    says(*[mark.text for mark in plot.marks if isinstance(mark, Text) and "[0.400, " in mark.text])
    slanted = [m for m in plot.marks if isinstance(m, Line) and m.x1 != m.x2 and m.y1 != m.y2]
    assert len(slanted) == 2
    tip = max(m.x2 for m in slanted)
    assert tip == max(m.x2 for m in plot.marks if isinstance(m, Line) and m.y1 == m.y2)


def test_missing_items_are_a_dashed_line_outside_the_interval():
    plot = forest("x", [PlotRow("a", Estimate(0.8, 0.75, 0.85, 90, 100, lowest=0.6, highest=0.9))])
    dashed = [m for m in plot.marks if isinstance(m, Line) and m.dashed]
    assert len(dashed) == 2
    assert {m.y1 for m in dashed} == {m.y for m in circles(plot)}
    assert "n 90 of 100" in texts(plot)


def test_no_value_is_reported():
    plot = forest("x", [PlotRow("a", Estimate(None, n=0, of=5)), PlotRow("b", Estimate(0.5, n=5, of=5))])
    assert "no value" in texts(plot)
    assert len(circles(plot)) == 1
    assert forest("nothing", []).marks is not None


def test_a_scatter_fills_what_nothing_beats():
    def at(name: str, cost: float, value: float) -> Point:
        return Point(name, cost, Estimate(value, value - 0.1, value + 0.1, 10, 10))

    points = [at("cheap", 1, 0.5), at("dear", 10, 0.9), at("beaten", 11, 0.8)]
    drawn = [m for m in circles(scatter("q", points, "$", "accuracy")) if m.r == 5]
    assert [m.filled for m in drawn] == [True, True, False]
    drawn = [m for m in circles(scatter("q", points, "$", "error", higher_is_better=False)) if m.r == 5]
    assert [m.filled for m in drawn] == [True, False, False]


def test_a_confusion_matrix_has_every_count(says):
    plot = confusion("c", ["a", "b"], [[8, 2], [0, 5]], {"evaluator": "e"})
    assert [m.text for m in plot.marks if isinstance(m, Text) and m.text.isdigit()] == ["8", "2", "0", "5"]
    says(plot.description)
    cell = next(m for m in plot.marks if isinstance(m, Rect) and m.about["predicted"] == "b")
    assert cell.about == {"evaluator": "e", "expected": "a", "predicted": "b"}


def test_bars_are_as_long_as_their_counts():
    kinds = [FailureKind("run-1", "output", "failed", name, n) for name, n in (("A", 10), ("B", 5))]
    first, second = (m for m in failures("f", kinds, {"run-1": "mine"}).marks if isinstance(m, Rect))
    assert math.isclose(first.width, 2 * second.width)
    assert first.about == {"where": "run-1", "what": "output", "type": "A"}


def everything(name: str) -> list[Plot]:
    """Each kind of plot, with a text in all its places."""
    estimate = Estimate(0.5, 0.4, 0.6, 8, 10, lowest=0.3, highest=0.7)
    about = {"run": name}
    return [
        forest(
            name,
            [PlotRow(name), PlotRow(name, estimate, about=about), PlotRow(name, estimate, name, name)],
            zero=True,
        ),
        scatter(name, [Point(name, 1.0, estimate, about), Point(name, 2.0, estimate)], name, name),
        bars(name, [(name, 3, about), ("b", 0, {})]),
        confusion(name, [name, "b"], [[1, 2], [3, 4]], about),
        calibration(name, [CalibrationBin(0.1, estimate), CalibrationBin(0.9, estimate)], about),
        failures(name, [FailureKind(name, name, "failed", name, 1)], {}),
    ]


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_no_text_can_become_markup(name):
    for plot in everything(name):
        root = ElementTree.fromstring(svg(plot, "p"))
        kinds = {element.tag for element in root.iter()}
        assert kinds <= {"svg", "title", "desc", "line", "path", "rect", "circle", "text"}
        for element in root.iter():
            assert not [key for key in element.attrib if key.startswith("on") or key in ("href", "style")]
        assert root.get("role") == "img"
        assert [child.tag for child in root][:2] == ["title", "desc"]
        shown = "".join(root.itertext())
        assert not [c for c in shown if c in "\x00\x1b\x7f\u202e\u200b\ufeff\u2028"]


def test_marks_lie_on_the_canvas():
    for plot in everything("a label of usual length"):
        for mark in plot.marks:
            if isinstance(mark, Text):
                width = text_width(mark.text) * (0.86 if mark.small else 1)
                left = mark.x - {"start": 0, "middle": width / 2, "end": width}[mark.anchor]
                assert left >= -1
                assert left + width <= plot.width + 12, mark
                assert 0 <= mark.y <= plot.height
            elif isinstance(mark, Circle):
                assert 0 <= mark.x <= plot.width
                assert 0 <= mark.y <= plot.height


places = st.floats(0, 1040, allow_nan=False)


@given(st.lists(st.tuples(places, places, places, places, st.sampled_from("hvl")), min_size=1, max_size=12))
def test_lines_that_are_joined_stay_in_their_places(drawn):
    lines = []
    for x1, y1, x2, y2, way in drawn:
        lines.append(Line(x1, y1, x1 if way == "v" else x2, y1 if way == "h" else y2))
    root = ElementTree.fromstring(svg(Plot("t", "d", 1040, 1040, list(lines)), "p"))
    (path,) = (element for element in root if element.tag == "path")
    steps = re.findall(r"([A-Za-z])([^A-Za-z]*)", path.attrib["d"])
    x = y = 0.0
    found = []
    for name, numbers in steps:
        values = [float(each) for each in re.findall(r"-?[\d.]+", numbers)]
        before = (x, y) if name.islower() else (0.0, 0.0)
        old = (x, y)
        match name.lower():
            case "h":
                x = before[0] + values[0]
            case "v":
                y = before[1] + values[0]
            case _:
                x, y = before[0] + values[0], before[1] + values[1]
        if name.lower() != "m":
            found.append((*old, x, y))
    for line, place in zip(lines, found, strict=True):
        assert place == pytest.approx((line.x1, line.y1, line.x2, line.y2), abs=0.0501)


def test_the_description_names_the_group_of_a_row():
    plot = forest(
        "x",
        [
            PlotRow("law"),
            PlotRow("a", Estimate(0.5, n=5, of=5)),
            PlotRow("art"),
            PlotRow("a", Estimate(0.7, n=5, of=5)),
        ],
    )
    assert "law, a: 0.500" in plot.description
    assert "art, a: 0.700" in plot.description


def test_plots_are_plain_data():
    for plot in everything("x"):
        assert msgspec.json.decode(msgspec.json.encode(plot), type=Plot) == plot


def test_long_and_wide_labels_are_cut():
    assert fitted("short", 100) == "short"
    assert fitted("a" * 100, 64).endswith("…")
    assert text_width(fitted("日本語" * 50, 100)) <= 100
