"""Answers from retrieved memories: one prompt, one tokenizer and one budget for every memory system.

The model sees numbered items, the question and its date. It cites items by number; karat resolves the numbers, so a
cited memory is always one that was retrieved.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import msgspec

from karat import models
from karat.errors import RequestError
from karat.memory._dialogue import count_tokens, cut_tokens

EXTRACTIVE = "extractive"
"""The name of the offline answerer, which is no language model."""

TOKENIZER = "karat.memory 1"
"""The name of the rule by which `count_tokens` counts, part of the settings that compared systems share."""

ANSWER_TOKENS = 2048
"""The limit on the length of an answer, reasoning included."""

REFUSAL = "I don't know."

PROMPT = """\
You answer a question about earlier conversations. All that is left of them are the numbered memories in the message.

Use the memories and nothing else. Memories may be out of date: where two contradict each other, the later one holds. If
the memories do not contain the answer, say that you do not know; do not guess. Work out relative dates ("last week")
from the date of the memory they are in. Answer in one short sentence, or with the bare fact.

Reply with a JSON object. "answer" is the answer. "cited" lists the numbers of the memories that the answer rests on; it
is empty if there are none."""

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "answer": {"type": "string"},
        "cited": {"type": "array", "items": {"type": "integer"}},
    },
    "required": ["answer", "cited"],
    "additionalProperties": False,
}


def prompt_identity() -> str:
    """The hash of everything in the answer prompt that is the same for all questions."""
    return hashlib.blake2b((PROMPT + repr(SCHEMA)).encode(), digest_size=8).hexdigest()


class ContextItem(msgspec.Struct, frozen=True):
    """A retrieved memory as the answering model sees it, with its number from 1."""

    number: int
    memory_id: str
    text: str


class AnswerContext(msgspec.Struct, frozen=True):
    """The items that fit into the budget, and what was cut."""

    items: tuple[ContextItem, ...]
    tokens: int
    items_cut: int = 0
    """Items that were left out or shortened."""
    tokens_cut: int = 0


def fit(retrieved: Sequence[tuple[str, str]], budget: int | None) -> AnswerContext:
    """Items `(memory id, text)` in order of rank, up to a number of tokens; the item that crosses it is shortened."""
    kept: list[ContextItem] = []
    used = cut = tokens_cut = 0
    for number, (memory_id, text) in enumerate(retrieved, 1):
        size = count_tokens(text)
        room = size if budget is None else min(size, max(0, budget - used))
        if size > room:
            cut += 1
            tokens_cut += size - room
            text = cut_tokens(text, room)
        if text:
            kept.append(ContextItem(number, memory_id, text))
            used += room
    return AnswerContext(tuple(kept), used, cut, tokens_cut)


class Asked(msgspec.Struct, frozen=True):
    """A question as an answerer sees it, without the gold answer."""

    question: str
    now: str | None = None
    choices: tuple[str, ...] = ()
    instruction: str = ""


class Answer(msgspec.Struct, frozen=True):
    """An answer and the numbers of the items it cites; `text` is None without an answering model."""

    text: str | None
    cited: tuple[int, ...] = ()
    invented: int = 0
    """Cited numbers that name no item."""


class Answerer:
    """Answers nothing: used without a model, so that only memories and retrieval are measured."""

    method = "none"

    def identity(self) -> Any:
        """What the answers depend on, JSON-able."""
        return None

    def answer(self, asked: Asked, context: AnswerContext) -> Answer:
        """The answer to a question from the items of a context."""
        return Answer(None)


class ExtractiveAnswerer(Answerer):
    """Copies the sentence that shares most words with the question. It is no language model."""

    method = "extractive"

    def identity(self) -> Any:
        return {"extractive": 3}

    def answer(self, asked: Asked, context: AnswerContext) -> Answer:
        from karat.memory._language import content_words, sentences

        wanted = content_words(asked.question)
        best: tuple[float, int, str] | None = None
        for item in context.items:
            for sentence in sentences(item.text):
                words = content_words(sentence)
                shared = len(wanted & words)
                if shared:
                    score = shared + shared / (len(words) + 1)
                    if best is None or score > best[0]:
                        best = (score, item.number, sentence)
        if best is None:
            return Answer(REFUSAL)
        return Answer(best[2], (best[1],))


class ModelAnswerer(Answerer):
    """Asks a model of `karat.models`."""

    method = "model"

    def __init__(self, model: Any) -> None:
        self.model = models.get(model)
        self.model.check_options({"max_tokens": ANSWER_TOKENS})

    def identity(self) -> Any:
        return {"model": self.model.spec, "endpoint": self.model.identity()}

    def answer(self, asked: Asked, context: AnswerContext) -> Answer:
        reply = self.model.generate_sync(
            [{"role": "system", "content": PROMPT}, {"role": "user", "content": message(asked, context)}],
            schema=self._schema(context),
            max_tokens=ANSWER_TOKENS,
        )
        return resolve(reply.parsed, context)

    def _schema(self, context: AnswerContext) -> dict[str, Any]:
        """The schema of a reply; bounded for a grammar, which would write until its limit."""
        if not self.model.follows_grammar:
            return SCHEMA
        cited = {
            "type": "array",
            "items": {"type": "integer"},
            "maxItems": max(1, min(5, len(context.items))),
        }
        return {**SCHEMA, "properties": {"answer": {"type": "string", "maxLength": 300}, "cited": cited}}


def message(asked: Asked, context: AnswerContext) -> str:
    """The user message: memories, date, question, instruction and choices."""
    lines = ["Memories:"]
    lines += [f"{item.number}. {item.text}" for item in context.items] or ["(none)"]
    if asked.now is not None:
        lines += ["", f"Today is {asked.now}."]
    lines += ["", f"Question: {asked.question}"]
    if asked.instruction:
        lines += ["", asked.instruction]
    if asked.choices:
        lines += ["", "Answer with one of these:", *(f"- {choice}" for choice in asked.choices)]
    return "\n".join(lines)


def resolve(given: object, context: AnswerContext) -> Answer:
    """An answer from the model's reply; a number that names no item is counted as invented."""
    if not isinstance(given, dict) or not isinstance(given.get("answer"), str):
        raise ValueError("the answering model's reply has no text in 'answer'")
    known = {item.number for item in context.items}
    cited = given.get("cited")
    if not isinstance(cited, list):
        raise ValueError("'cited' of the answering model's reply is not a list of numbers")
    numbers = list(dict.fromkeys(n for n in cited if isinstance(n, int) and not isinstance(n, bool)))
    right = tuple(number for number in numbers if number in known)
    invented = len(numbers) - len(right) + sum(isinstance(n, bool) or not isinstance(n, int) for n in cited)
    return Answer(given["answer"], right, invented)


def answerer_of(model: object) -> Answerer:
    """The answerer that `--model` names: a model, `extractive`, or none."""
    if model is None:
        return Answerer()
    if model == EXTRACTIVE:
        return ExtractiveAnswerer()
    if isinstance(model, str) and not model.strip():
        raise RequestError("model is empty: name a model, or extractive")
    return ModelAnswerer(model)
