"""A ranking of runs, and the plan of one, as blocks of a report."""

from __future__ import annotations

from karat.comparison.missing import RankingPlan
from karat.comparison.ranking import Ranking
from karat.report.blocks import Block, Heading, Paragraph, Table, interval, matrix_table, percent
from karat.report.text import number

MOST_IN_MATRIX = 12
"""Runs whose win probabilities are shown against each other."""


def ranking_blocks(ranking: Ranking) -> list[Block]:
    """The table of runs, what it rests on, and who would beat whom."""
    blocks: list[Block] = [
        Heading(f"{len(ranking.places)} runs ranked by {ranking.source}", 1),
        _places(ranking),
        Paragraph(_basis(ranking)),
        Paragraph(_position(ranking)),
        *(Paragraph(note) for note in ranking.notes),
    ]
    shown = ranking.places[:MOST_IN_MATRIX]
    if len(shown) > 2 or (len(shown) == 2 and ranking.method == "bradley-terry"):
        names = [place.label for place in shown]
        rows = [(name, [_cell(ranking, i, j) for j in range(len(shown))]) for i, name in enumerate(names)]
        blocks += [
            Heading("probability that the run of the row wins against that of the column"),
            matrix_table(
                "",
                [f"{i + 1}" for i in range(len(shown))],
                [(f"{i + 1} {n}", c) for i, (n, c) in enumerate(rows)],
            ),
        ]
    return blocks


def _places(ranking: Ranking) -> Table:
    elo = ranking.method == "elo"
    spread = "over orders" if elo else f"{percent(ranking.confidence)} interval"
    head = [
        "rank",
        *([] if elo else ["range"]),
        "run",
        "rating",
        spread,
        "win rate",
        "interval",
        "won/lost/tied",
        "id",
    ]
    rows = []
    for place in ranking.places:
        rows.append(
            [
                str(place.rank),
                *([] if elo else [f"{place.rank_low}–{place.rank_high}"]),
                place.label,
                number(place.rating.value, 0),
                interval(place.rating.low, place.rating.high, digits=0),
                number(place.win_rate.value),
                interval(place.win_rate.low, place.win_rate.high),
                f"{place.wins:,}/{place.losses:,}/{place.ties:,}",
                place.run,
            ]
        )
    return Table(head, rows, [0, 3 - elo, 5 - elo])


def _cell(ranking: Ranking, i: int, j: int) -> str:
    return "·" if i == j else number(ranking.win_probability[i][j], 2)


def _basis(ranking: Ranking) -> str:
    how = (
        "Bradley–Terry, clustered by example"
        if ranking.method == "bradley-terry"
        else "classic Elo, averaged over orders"
    )
    return (
        f"{ranking.n:,} of {ranking.of:,} comparisons over {ranking.examples:,} examples, {ranking.ties:,} ties; {how},"
        " on the Elo scale around 1500."
    )


def _position(ranking: Ranking) -> str:
    bias = ranking.position_bias
    if bias.value is None:
        return f"Position bias is not known: {bias.metadata.get('reason', 'no comparisons')}."
    low, high = bias.low, bias.high
    text = f"Of two equally good runs the one shown first wins with probability {bias.value:.3f} {interval(low, high)}"
    clear = low is not None and high is not None and (low > 0.5 or high < 0.5)
    return text + (": there is a position bias." if clear else ": no position bias is seen.")


def plan_blocks(plan: RankingPlan) -> list[Block]:
    """What is there, what is missing, and what it would cost."""
    rows = [
        [plan.labels[pair.first], plan.labels[pair.second], f"{pair.done:,}", f"{pair.missing:,}"]
        for pair in plan.pairs
    ]
    cost = f"about ${plan.cost:.4f}" if plan.cost is not None else f"unknown: {plan.reason}"
    return [
        Heading(f"comparisons by {plan.evaluator}: {plan.done:,} done, {plan.missing:,} missing", 1),
        Table(["run", "against", "done", "missing"], rows, [2, 3]),
        Paragraph(f"The missing ones would cost: {cost}."),
    ]
