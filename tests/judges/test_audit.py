"""The audit: judges of known quality get the verdict they deserve."""

from __future__ import annotations

import json
import re

import pytest

import karat
from karat.analysis.judges.audit import ATTACKS, audit, audit_items
from karat.cli import main

from .conftest import echo, material


def part(body, name):
    text = material(body)
    found = re.search(rf"begin {name}\]\n(.*?)\n\[\w+ end {name}\]", text, re.S)
    return found[1] if found else ""


def perfect(body):
    """Knows the right answers, and follows nothing."""
    if "begin first]" in material(body):
        return {"analysis": "", "choice": "tie"}
    answer, item = part(body, "answer"), item_of(body)
    good = any(answer.startswith(each) for each in (item.right, item.paraphrase))
    return {"analysis": "", "pass": good}


def item_of(body):
    return next(item for item in audit_items() if item.question == part(body, "question"))


def gullible(body):
    """As good, but believes a verdict that it is shown."""
    if '"pass": true' in part(body, "answer"):
        return {"analysis": "", "pass": True}
    return perfect(body)


def always(body):
    if "begin first]" in material(body):
        return {"analysis": "", "choice": "first"}
    return {"analysis": "", "pass": True}


def test_the_sets_are_large_enough_and_consistent():
    assert len(ATTACKS) >= 20
    items = audit_items()
    assert len(items) >= 20
    assert len({item.id for item in items}) == len(items)
    for item in items:
        assert len({item.right, item.paraphrase, item.wrong, item.vague}) == 4
        for name, attack in ATTACKS.items():
            assert attack(item), name
            assert item.right not in attack(item), name


def test_a_sound_judge(store, serve):
    server = serve(perfect, model="served-1")
    found = audit(server.spec(), store=store, concurrency=20)
    assert found.verdict == "sound"
    assert (found.false_accept.value, found.false_reject.value, found.attack_success.value) == (0.0, 0.0, 0.0)
    assert found.self_consistency.value == 1.0
    assert found.length_bias.value == 0.0
    assert found.served_models == ["served-1"]
    assert set(found.by_attack) == set(ATTACKS)
    assert found.false_accept.high > 0  # an interval, not a proof


def test_a_judge_that_believes_what_it_is_shown_is_misled(store, serve):
    found = audit(serve(gullible).spec(), store=store, concurrency=20)
    assert found.false_accept.value == 0.0
    assert found.attack_success.value > 0
    assert found.by_attack["fake verdict"].value == 1.0
    assert found.by_attack["only a colon"].value == 0.0


def test_both_orders_of_a_pair_are_one_observation_of_position_bias(store, serve):
    """A judge that prefers the first of each pair: 8 pairs in two orders are 8 observations, not 16."""
    found = audit(serve(always).spec(), store=store, limit=8, attacks=[], concurrency=20)
    assert (found.position_bias.value, found.position_bias.n) == (1.0, 16)
    assert "note" not in found.position_bias.metadata, "pairs are no clusters that were drawn"
    alone = karat.stats.proportion([True] * 16)
    assert found.position_bias.low < alone.low


def test_a_jury_is_audited(store, serve):
    first, second = serve(perfect), serve(perfect)
    found = audit([first.spec(), second.spec()], store=store, limit=3, attacks=[], concurrency=20)
    assert found.judge == [first.spec(), second.spec()]


def test_a_judge_with_inconsistent_verdicts(store, serve):
    def answer(body):
        answer.asked += 1
        return (
            perfect(body)
            if answer.asked % 2 or "begin first]" in material(body)
            else {"analysis": "", "pass": True}
        )

    answer.asked = 0
    server = serve(answer)
    found = audit(server.spec(), store=store, limit=6, attacks=[], concurrency=1)
    assert found.self_consistency.value < 0.9
    # Judged again, the same audit makes no call.
    made = server.count
    audit(server.spec(), store=store, limit=6, attacks=[], concurrency=1)
    assert server.count == made


def test_a_judge_that_always_passes_is_useless_and_not_attacked(store, serve):
    found = audit(serve(always).spec(), store=store, concurrency=20)
    assert found.verdict == "useless"
    assert found.false_accept.value == 1.0
    assert found.attack_success.value is None
    assert found.attack_success.n == 0
    assert found.position_bias.value == 1.0


def test_the_latest_audit_is_shown_beside_scores_and_becomes_stale(store, serve):
    server = serve(perfect, model="served-1")
    item = audit_items()[0]
    run = karat.run(
        echo, [{"id": "a", "input": item.question}, {"id": "b", "input": item.question}], store=store
    )
    spec = {"name": "llm_judge", "params": {"judge": server.spec()}}
    before = karat.aggregate(karat.evaluate(run, [spec]), ["accuracy"])
    assert "not audited" in before.report()
    found = audit(server.spec(), store=store, limit=5, concurrency=20)
    after = karat.aggregate(karat.evaluate(run, [spec]), ["accuracy"], new=True)
    assert after.estimates["accuracy"].metadata["audit"] == found.id
    assert "audited" in after.report()
    server.model = "served-2"
    other = karat.run(_shout, [{"id": "a", "input": item.question}], store=store)
    assert "stale" in karat.aggregate(karat.evaluate(other, [spec]), ["accuracy"]).report()


def _shout(input):
    return input.upper()


@pytest.mark.parametrize("as_json", [False, True])
def test_the_command(serve, folder, capsys, as_json):
    server = serve(always)
    more = ["--json"] if as_json else ["--quiet"]
    store = f"sqlite:///{folder}/audit.db"
    assert main(["judge", "audit", "--judge", server.spec(), "--limit", "4", "--store", store, *more]) == 0
    out = capsys.readouterr().out
    assert json.loads(out)["verdict"] == "useless" if as_json else "useless" in out
