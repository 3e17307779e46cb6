"""A graph's own unit-metric results, read from a field of the output, as an evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from karat.errors import CannotJudge, NotApplicable, clip
from karat.evaluators._base import Evaluator, ParameterCheck, register_evaluator
from karat.evaluators._values import value_at
from karat.records import Result


class NotJudged(NotApplicable):
    """A result that the task owed and did not write: a skip that counts among what is missing."""

    applicable = True


@register_evaluator("from_output")
class FromOutput(Evaluator):
    """Reads a field of the output: a unit metric's result, a verdict or a score that the task wrote itself.

    A field that is null was not judged: the item is skipped, and estimates count it as missing. `metadata` names
    further fields of the output to keep with the result: `{name: field}`.
    """

    name: ClassVar[str] = "from_output"
    reuse = False
    batched = True
    bounds = None  # a task may write any number
    example: ClassVar[Mapping[str, Any]] = {
        "params": {"field": "exact_match"},
        "outputs": {
            "exact_match": {"correct": True, "golden": "Paris", "predicted": "paris", "metadata": {}}
        },
        "score": 1.0,
    }

    def __init__(self, field: str, metadata: dict[str, str] | None = None) -> None:
        check = ParameterCheck(self.name)
        self.field = check.text("field", field)
        self.metadata = {
            name: check.text(f"metadata.{name}", path) for name, path in (metadata or {}).items()
        }
        super().__init__(self.field)
        self.params = {"field": field, **({"metadata": metadata} if metadata else {})}

    def evaluate(
        self, *, outputs: object, reference_outputs: object = None, inputs: object = None, **context: Any
    ) -> Result:
        if outputs is None:
            raise NotApplicable("the task omitted the record")
        if not isinstance(outputs, dict):
            raise CannotJudge(f"the output is {clip(outputs)}, not an object with the field {self.field!r}")
        given = value_at(outputs, self.field, "the output")
        if given is None:
            raise NotJudged(f"the task left {self.field} empty")
        if isinstance(given, (bool, int, float)):
            return Result(self.key, float(given), given, f"the task wrote {given} into {self.field}")
        if not isinstance(given, Mapping):
            raise CannotJudge(f"{self.field}: a unit metric result is an object, not {clip(given)}")
        correct, golden, predicted = (given.get(name) for name in ("correct", "golden", "predicted"))
        if not isinstance(correct, bool):
            raise CannotJudge(
                f"{self.field}: a unit metric result needs correct: true or false, not {clip(correct)}"
            )
        more = {name: value_at(outputs, path, "the output") for name, path in self.metadata.items()}
        metadata = {**(given.get("metadata") or {}), **more, "golden": golden, "predicted": predicted}
        verdict = "correct" if correct else "wrong"
        comment = f"{self.field} says {verdict}: {clip(predicted)} against {clip(golden)}"
        return Result(self.key, float(correct), correct, comment, metadata)
