"""A store with results worth looking at: support answers by three models, with a judge, labels and failures.

Used by the tests of the HTML report and the viewer, and for the pictures in the documentation. All models are a fake
provider on loopback, so that the numbers are the same every time.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import karat
from karat import models
from karat.execution.labels import LabelledItem, NewLabel, store_labels
from karat.store import Store
from karat.store.handles import Evaluation, Run
from karat.tasks import FunctionTask
from karat.testing import FakeProvider

TOPICS = {
    "refund": ["I want my money back for order {n}.", "How long does a refund for order {n} take?"],
    "delivery": ["Where is parcel {n}?", "Parcel {n} came damaged, what now?"],
    "account": ["I cannot log in to account {n}.", "Please delete account {n}."],
    "invoice": ["The invoice {n} shows the wrong address.", "Send me invoice {n} again, please."],
}
REPLIES = {
    "refund": "You get the money for order {n} back within 14 days, to the card you paid with.",
    "delivery": "Parcel {n} is on its way. If it is damaged, send us a photo and we will replace it.",
    "account": "Use the link on the login page to reset the password of account {n}.",
    "invoice": "We have corrected invoice {n} and sent it to your e-mail address.",
}
WRONG = {
    "refund": "You get the money for order {n} back within 30 days, as a voucher.",
    "delivery": "Parcel {n} is on its way. If it is damaged, please contact the carrier.",
    "account": "Account {n} does not exist. Please create a new one.",
    "invoice": "Invoices cannot be changed once they are sent. Invoice {n} stays as it is.",
}
SKILL = {"large": 0.93, "medium": 0.84, "small": 0.62}
"""How often each made-up model is right."""
PRICES = {
    "date": "2026-01-01",
    "models": {
        "openai/large": {"input": 2.5, "output": 10.0},
        "openai/medium": {"input": 0.15, "output": 0.6},
        "openai/small": {"input": 0.1, "output": 0.4},
    },
}
LANGUAGES = ("en", "en", "en", "de", "fr")
INTENTS = list(TOPICS)


class Sample(NamedTuple):
    """What the sample store holds."""

    store: Store
    runs: list[Run]
    evaluation: Evaluation
    agents: list[Run]
    """Two runs of an agent that calls tools."""


def examples(count: int) -> list[dict[str, Any]]:
    """Questions to a support desk, with the intent and a reference reply."""
    made = []
    for n in range(count):
        topic = INTENTS[n % 4]
        question = TOPICS[topic][n // 4 % 2].format(n=1000 + n)
        language = LANGUAGES[n % 5]
        made.append(
            {
                "id": f"ticket-{n:03}",
                "input": question,
                "expected": {"intent": topic, "reply": REPLIES[topic].format(n=1000 + n)},
                "metadata": {"topic": topic, "language": language, "priority": n % 3 + 1},
            }
        )
    return made


def chance(*parts: object) -> float:
    """A number from 0 to 1 that depends on nothing but its arguments."""
    return zlib.crc32(repr(parts).encode()) / 2**32


def reply_of(body: dict[str, Any]) -> Any:
    """What the fake provider answers: as a support model, or as the judge."""
    text = json.dumps(body["messages"], ensure_ascii=False)
    model = str(body["model"])
    if "Reply with JSON" not in text:
        wrong = any(
            part in text for part in ("30 days", "contact the carrier", "does not exist", "stays as it is")
        )
        words = re.sub(r"[0-9a-f]{16}", "", text)  # the fences differ from one user of karat to the next
        doubt = chance("judge", words) < 0.06
        verdict = wrong == doubt
        reason = "agrees with the reference" if verdict else "contradicts the reference"
        return json.dumps({"analysis": f"The reply {reason}.", "pass": verdict})
    question = str(body["messages"][-1]["content"])
    number = "".join(c for c in question if c.isdigit())
    topic = next(t for t, asked in TOPICS.items() if any(a.format(n=number) == question for a in asked))
    skill = SKILL[model] - (0.25 if LANGUAGES[(int(number) - 1000) % 5] == "fr" else 0.0)
    good = chance(model, question) < skill
    said = topic if good or chance("i", model, question) < 0.5 else INTENTS[INTENTS.index(topic) - 1]
    reply = (REPLIES if good else WRONG)[topic].format(n=number)
    if chance("f", model, question) < 0.04:
        return {"text": "Sorry, I cannot", "usage": (310, 4)}
    return {
        "text": json.dumps({"intent": said, "reply": reply}),
        "usage": (300 + len(question), 40 + len(reply) // 4),
    }


def intent(outputs: Any, expected: Any) -> karat.Result:
    """Whether the intent is right."""
    same = outputs["intent"] == expected["intent"]
    comment = "" if same else f"{outputs['intent']} instead of {expected['intent']}"
    metadata = {"golden": expected["intent"], "predicted": outputs["intent"]}
    return karat.Result("intent", float(same), same, comment=comment, metadata=metadata)


intent.pass_fail = True  # type: ignore[attr-defined]  # of a function that returns a Result


def reply_words(outputs: Any, expected: Any) -> karat.Result:
    """The share of the reference's words that the reply has."""
    want, have = expected["reply"].split(), set(outputs["reply"].split())
    share = sum(word in have for word in want) / len(want)
    return karat.Result("reply_words", share, comment=f"{share:.0%} of the reference's words")


def support(example: karat.Example, model: str) -> Any:
    """Answer one ticket."""
    reply = models.get(f"openai/{model}").generate_sync(
        [
            {"role": "system", "content": "Reply with JSON: intent and reply."},
            {"role": "user", "content": example.input},
        ]
    )
    return json.loads(reply.text)


@models.tool
def find_order(number: str) -> dict[str, Any]:
    """Look an order up."""
    return {"order": number, "status": "delivered", "paid": 49.9}


@models.tool
def refund(number: str, amount: float) -> str:
    """Refund an order."""
    if amount > 100:
        raise ValueError("more than was paid")
    return f"refunded {amount} for {number}"


def agent(example: karat.Example, careful: bool) -> str:
    """Handle one ticket with tools."""
    number = "".join(c for c in str(example.input) if c.isdigit())
    if careful or chance("look", number) < 0.7:
        find_order(number=number)
    amount = 49.9 if careful or chance("amount", number) < 0.6 else 490.0
    refund(number=number, amount=amount)
    return f"I have refunded {amount} for order {number}."


def refunded_right(outputs: Any) -> karat.Result:
    """Whether the amount is right."""
    return karat.Result("refunded_right", float("49.9 " in str(outputs)))


@contextmanager
def sample_store(folder: Path, count: int = 160) -> Iterator[Sample]:
    """Make the store in a folder: `results.db`."""
    with karat.open_store(folder / "results.db") as store:
        yield fill(store, folder, count)


def fill(store: Store, folder: Path, count: int = 160) -> Sample:
    """Run, judge, label and aggregate the sample."""
    data = karat.Dataset.from_examples(examples(count), name="support")
    judge = {
        "name": "llm_judge",
        "key": "judged",
        "params": {
            "criterion": "The reply promises the same as the reference.",
            "answer": "output.reply",
            "reference": "expected.reply",
            "judge": {"model": "openai/medium"},
        },
    }
    with _provider(folder):
        runs = []
        for model in SKILL:
            task = FunctionTask(support, name="support", parameters={"model": model})
            task.code = lambda: "support 1"  # type: ignore[method-assign]
            runs.append(karat.run(task, data, store=store, progress=False, cache="off"))
        intents = karat.evaluate(runs, [intent], store=store, progress=False)
        evaluation = karat.evaluate(runs, [reply_words, judge], store=store, progress=False, cache="off")
    labels = [
        NewLabel(
            item=LabelledItem(run.id, output.example),
            score=float(chance("p", output.example) < 0.9) if right else 0.0,
        )
        for run in runs[:2]
        for output in list(run.outputs())[:40]
        if isinstance(output.value, dict)
        for right in [
            output.value["reply"] == REPLIES[_topic(output.example)].format(n=1000 + int(output.example[-3:]))
        ]
    ]
    store_labels(
        evaluation, "judged", labels, annotator="reviewer", sampling="uniform", options=("pass", "fail")
    )
    by_topic = {"name": "accuracy", "key": "by_topic", "params": {"by": "topic"}}
    by_language = {"name": "accuracy", "key": "by_language", "params": {"by": "language"}}
    karat.aggregate(intents, ["accuracy", {"name": "f1_score", "key": "classes"}, by_topic], store=store)
    karat.aggregate(evaluation, ["mean", by_language], store=store)
    agents = []
    tickets = [each for each in examples(count) if each["metadata"]["topic"] == "refund"]
    for careful in (True, False):
        task = FunctionTask(agent, name="agent", parameters={"careful": careful})
        task.code = lambda: "agent 1"  # type: ignore[method-assign]
        orders = karat.Dataset.from_examples(tickets, name="orders")
        agents.append(karat.run(task, orders, store=store, progress=False))
    karat.evaluate(agents, [refunded_right, "redundant_calls"], store=store, progress=False)
    return Sample(store, runs, evaluation, agents)


@contextmanager
def _provider(folder: Path) -> Iterator[None]:
    """Requests to OpenAI go to the fake provider, at made-up prices."""
    prices = folder / "prices.json"
    prices.write_text(json.dumps(PRICES))
    with FakeProvider(reply_of, strict=False) as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENAI_BASE_URL", server.url)
        patch.setenv("OPENAI_API_KEY", "none")
        patch.setenv("KARAT_PRICES", str(prices))
        yield


def _topic(example: str) -> str:
    return INTENTS[int(example[-3:]) % 4]
