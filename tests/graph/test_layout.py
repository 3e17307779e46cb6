"""Where boxes and arrows go: boxes apart from each other, and no arrow through one."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from karat.graph._drawing import HEIGHT, WIDTH, Layout

NAMES = ["START", *"abcdefg", "END"]


def ways():
    one = st.tuples(st.sampled_from(NAMES[:-1]), st.sampled_from(NAMES[1:]))
    return st.dictionaries(one, st.integers(0, 150), max_size=20)


def boxes(layout: Layout) -> dict[str, tuple[int, int]]:
    return {name: layout.box(name) for name in NAMES}


@given(ways())
def test_boxes_do_not_overlap_and_are_in_the_picture(given_ways):
    layout = Layout(NAMES, given_ways)
    placed = list(boxes(layout).values())
    for at, (x, y) in enumerate(placed):
        assert 0 <= x <= layout.width - WIDTH
        assert 0 <= y <= layout.height - HEIGHT
        assert all(abs(x - u) >= WIDTH or abs(y - v) >= HEIGHT for u, v in placed[at + 1 :])


@given(ways())
def test_a_way_goes_through_no_box_and_ends_where_it_leads(given_ways):
    layout = Layout(NAMES, given_ways)
    for source, target in given_ways:
        back = layout.goes_back(source, target)
        points = layout.way_back(source, target) if back else layout.way(source, target)
        (x, y), (u, v) = layout.box(source), layout.box(target)
        assert points[0][1] == y + HEIGHT
        assert x <= points[0][0] <= x + WIDTH
        assert points[-1][1] == v
        assert u <= points[-1][0] <= u + WIDTH
        for (x1, y1), (x2, y2) in pairwise(points):
            for left, top in boxes(layout).values():
                beside = max(x1, x2) <= left or min(x1, x2) >= left + WIDTH
                assert beside or max(y1, y2) <= top or min(y1, y2) >= top + HEIGHT
