"""The progress line: how far a stage is, and what it will have cost."""

from __future__ import annotations

import pytest

from karat.execution.progress import Progress, ProgressLine


@pytest.mark.parametrize(
    ("progress", "said"),
    [
        (Progress("run", 100, done=25, cost=0.5), "$0.50 of about $2.00"),
        (Progress("run", 100, done=60, before=50, cost=0.5), "$0.50 of about $2.50"),
        (Progress("run", 100, done=100, cost=2.0), "$2.00"),
        (Progress("run", 100, done=50, before=50, cost=0.1), "$0.10"),
    ],
)
def test_the_line_says_the_cost_so_far_and_the_projected_total(progress, said):
    parts = ProgressLine().line(progress).split("  ")
    assert said in parts


def test_without_a_cost_nothing_is_said_of_it():
    assert "$" not in ProgressLine().line(Progress("run", 100, done=25))
