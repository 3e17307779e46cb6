"""The flow of evaluators that compare an output with a reference: paths, several references, or none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Generic, TypeVar, cast

import msgspec

from karat.errors import CannotJudge
from karat.evaluators._base import Evaluator, Item, ParameterCheck, Paths
from karat.evaluators._values import plain, text_of, value_at
from karat.records import Result

Prepared = TypeVar("Prepared")
"""What `prepare` reads an output as."""

MAX_REFERENCES = 1_000
"""How many references `any_of` takes, except where comparing with one more costs next to nothing."""


class ReferenceEvaluator(Evaluator, Generic[Prepared]):
    """The base class: override `judge`, and `prepare` where reading the output is work.

    A path is one for both sides, or `{output, reference}`. `any_of` says that the reference is a list of acceptable
    ones; the best of them counts.
    """

    reuse = False
    batched = True
    needs_reference = True

    def __init__(self, *, path: Paths = None, any_of: bool = False) -> None:
        super().__init__()
        check = ParameterCheck(self.name)
        self._output_path, self._reference_path = check.paths("path", path)
        self._any_of = check.flag("any_of", any_of)

    max_references: ClassVar[int] = MAX_REFERENCES
    _max_length: int | None = None
    """How many characters one text may have, and all references of an item together; None for no limit."""

    def prepare(self, output: Any) -> Prepared:
        """Read the value at `path` once, for all references."""
        return cast("Prepared", output)

    def judge(self, output: Prepared, reference: Any) -> Result:
        """Judge what `prepare` returned against one reference, which is not None."""
        raise CannotJudge(f"{self.name} does not say how it compares")

    def evaluate(
        self, *, outputs: object, reference_outputs: object = None, inputs: object = None, **context: Any
    ) -> Result:
        """Judge one output against its reference."""
        try:
            return self._judge(outputs, reference_outputs)
        except RecursionError:
            raise CannotJudge(f"{self.key}: the values are nested too deeply to be judged") from None

    def evaluate_many(self, items: Sequence[Item]) -> list[Result | Exception]:
        """Judge many outputs; the exception of an item that cannot be judged stands in its place."""
        out: list[Result | Exception] = []
        for item in items:
            try:
                out.append(self._judge(item.get("outputs"), item.get("reference_outputs")))
            except RecursionError:
                out.append(CannotJudge(f"{self.key}: the values are nested too deeply to be judged"))
            except Exception as error:
                out.append(error)
        return out

    def _judge(self, outputs: Any, reference: Any) -> Result:
        output, references = self._sides(outputs, reference)
        if self._any_of:
            return self._best(output, references)
        return self.judge(self.prepare(output), references[0])

    def _sides(self, outputs: Any, reference: Any) -> tuple[Any, list[Any]]:
        """What is compared: the output at its path, and the reference or references at theirs."""
        if reference is None:
            raise CannotJudge(f"{self.key} compares with a reference, but this item has none")
        if self._output_path is not None:
            outputs = value_at(outputs, self._output_path, "the output")
        if self._any_of:
            return outputs, self._several(reference)
        if self._reference_path is not None:
            reference = value_at(reference, self._reference_path, "the reference")
        return outputs, [reference]

    def _several(self, reference: Any) -> list[Any]:
        references, path = plain(reference, "the reference"), self._reference_path
        if isinstance(references, dict) and path is not None:
            references = value_at(references, path, "the reference")
        if not isinstance(references, list) or not references:
            raise CannotJudge(f"{self.key}: with any_of the reference must be a list of at least one")
        if len(references) > self.max_references:
            raise CannotJudge(
                f"{self.key}: the reference is a list of {len(references):,}; any_of takes at most"
                f" {self.max_references:,}"
            )
        if path is not None:
            references = [value_at(each, path, f"reference {at}") for at, each in enumerate(references)]
        if self._max_length is not None and len(references) > 1:
            total = sum(map(_length, references))
            if total > self._max_length:
                raise CannotJudge(
                    f"{self.key}: the references have {total:,} characters together, over max_length"
                    f" ({self._max_length:,}): give fewer, or raise max_length"
                )
        return references

    def _best(self, output: Any, references: list[Any]) -> Result:
        prepared = self.prepare(output)
        judged = [self.judge(prepared, reference) for reference in references]
        at = max(range(len(judged)), key=lambda index: judged[index].score or 0.0)
        best = judged[at]
        return msgspec.structs.replace(
            best,
            comment=f"{best.comment} (the best of {len(references)} references, number {at + 1})",
            metadata={**best.metadata, "reference": at},
        )


def _length(reference: Any) -> int:
    """The characters of a reference as text; 0 where it has none, which is an error of its own."""
    try:
        return len(text_of(reference, "the reference") or "")
    except CannotJudge:
        return 0


def reference_text(reference: object, who: str) -> str:
    """Return the reference as text; null has none to compare with."""
    text = text_of(reference, "the reference")
    if text is None:
        raise CannotJudge(f"{who}: the reference is null: there is no text to compare with")
    return text
