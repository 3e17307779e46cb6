"""One item with all its stored data; long fields are cut and can be downloaded whole."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from karat.errors import RequestError, UnknownName
from karat.evaluators.trajectory._calls import read_trajectory
from karat.records import Call, Example, ItemResult, Output, usage_of
from karat.serialization import encode
from karat.store.columns import cost_of
from karat.store.handles import Evaluation, Run
from karat.store.repositories import example_decoder, output_decoder, result_decoder
from karat.store.rows import error_text, judged_of, steps_line
from karat.traces import Step
from karat.view import Download

LONGEST_TEXT = 300
"""Characters of a value in a list of rows."""
LONGEST_FIELD = 20_000
"""Characters of a field that are sent with an item."""
STEPS = 200
"""Steps and calls that are sent with an item."""
COMPARED_CALLS = 500
MOST_CLAIMS = 200


def shown_text(value: Any) -> str:
    """Return a short form of a value: text unchanged, anything else as JSON, both cut."""
    if value is None:
        return ""
    text = value if isinstance(value, str) else as_json(value, LONGEST_TEXT)
    return text if len(text) <= LONGEST_TEXT else text[: LONGEST_TEXT - 1] + "…"


def as_json(value: Any, most: int | None = None) -> str:
    """A value as JSON text, without more of it than needed."""
    data = encode(value)
    return (data if most is None else data[: 4 * most + 4]).decode("utf-8", "ignore")


def output_text(value: Any) -> str:
    """Return a short form of an output: a trajectory that is not long as its calls, anything else as `shown_text`."""
    parts = value.values() if isinstance(value, dict) else [value]
    long = any(isinstance(each, list) and len(each) > STEPS for each in parts)
    return shown_text(value if long else steps_line(value) or value)


class _Found(Exception):
    def __init__(self, value: Any) -> None:
        self.value = value


class ItemPage:
    """The records of one item, and the documents made from them."""

    def __init__(
        self,
        run: Run,
        position: int,
        attempt: int,
        unit: str,
        example: Example,
        tries: Sequence[Output],
        results: Mapping[tuple[str, tuple[str, ...]], tuple[Evaluation, Sequence[ItemResult]]],
    ) -> None:
        self.run = run
        self.position = position
        self.attempt = attempt
        self.unit = unit
        self.example = example
        self.tries = tries
        self.results = results
        self._wanted: str | None = None
        self._steps: list[Step] | None = None

    @property
    def output(self) -> Output | None:
        """The current try."""
        return self.tries[-1] if self.tries else None

    @property
    def key(self) -> str:
        """The key, as in a row."""
        place = f"{self.position}.{self.attempt}"
        return f"{place}/{self.unit}" if self.unit else place

    @property
    def steps(self) -> list[Step]:
        """The steps of the trajectory; empty where the output is none."""
        if self._steps is None:
            self._steps = []
            if self.output is not None and self.output.outcome.status == "ok":
                try:
                    found = read_trajectory(self.output.value, self.output.trace)
                except (RequestError, ValueError):
                    return self._steps
                if not found.is_plain_text:
                    self._steps = list(found.steps)
        return self._steps

    def document(self) -> dict[str, Any]:
        """Everything, with long fields cut."""
        output = self.output
        trace = output.trace if output is not None else []
        return {
            "key": self.key,
            "run": self.run.id,
            "example": {
                "id": self.example.id,
                "position": self.position,
                "input": self._field("input", self._shown("input", self.example.input)),
                "expected": self._field("expected", self._shown("expected", self.example.expected)),
                "metadata": self._field("metadata", self.example.metadata or None),
            },
            "attempt": self.attempt,
            "unit": self.unit,
            "output": self._output(output),
            "steps": self._steps_between(0, STEPS),
            "steps_total": len(self.steps),
            "calls": [self._call(f"call.{place}", each) for place, each in enumerate(trace[:STEPS])],
            "calls_total": len(trace),
            "results": [self._result(key, *found) for (key, _), found in self.results.items()],
            "tries": [
                {
                    "try": each.try_number,
                    "status": each.outcome.status,
                    "error": error_text(each.outcome),
                    "seconds": each.service_seconds,
                    "value": self._field(f"try.{each.try_number}", each.value),
                }
                for each in self.tries
            ],
            "raw": self._field("raw", None if output is None else msgspec.to_builtins(output)),
        }

    def steps_document(self, start: int, count: int) -> dict[str, Any]:
        """Return a page of steps."""
        return {
            "steps": self._steps_between(start, start + count),
            "steps_total": len(self.steps),
            "start": start,
        }

    def download(self, name: str) -> Download:
        """A field by the name that its document gives."""
        self._wanted = name
        try:
            self.document()
            part, _, rest = name.partition(".")
            number = rest.partition(".")[0]
            if part == "step" and number.isdecimal() and len(number) < 10:
                self._steps_between(int(number), int(number) + 1)
            if part == "call" and number.isdecimal() and len(number) < 10 and self.output is not None:
                for each in self.output.trace[int(number) : int(number) + 1]:
                    self._call(f"call.{number}", each)
        except _Found as found:
            value = found.value
        else:
            raise UnknownName(f"the item has no field {name[:80]!r}")
        finally:
            self._wanted = None
        if isinstance(value, str):
            body = value.encode("utf-8", "surrogatepass").decode("utf-8", "replace").encode()
            return Download(body, "text/plain; charset=utf-8", "field.txt")
        return Download(msgspec.json.format(encode(value)), "application/json", "field.json")

    def _field(self, name: str, value: Any) -> dict[str, Any]:
        if self._wanted == name:
            raise _Found(value)
        if value is None:
            return {"kind": "none", "text": "", "size": 0, "cut": False, "download": None}
        if isinstance(value, str):
            kind, text = "text", value
            size = len(value.encode("utf-8", "surrogatepass"))
        else:
            kind, data = "json", encode(value)
            if len(data) <= LONGEST_FIELD:
                data = msgspec.json.format(data)
            size = len(data)
            text = data[: 4 * LONGEST_FIELD + 4].decode("utf-8", "ignore")
        cut = len(text) > LONGEST_FIELD
        return {
            "kind": kind,
            "text": text[:LONGEST_FIELD],
            "size": size,
            "cut": cut,
            "download": self._download_url(name) if cut else None,
        }

    def _shown(self, name: str, value: Any) -> Any:
        """The task's summary of a field, or its value without one; `raw` has the whole output."""
        return value if self.output is None else self.output.summary.get(name, value)

    def _download_url(self, name: str) -> str:
        from urllib.parse import quote

        return f"/api/r/{quote(self.run.id, safe='')}/field?key={quote(self.key, safe='')}&name={quote(name, safe='')}"

    def _answer(self, output: Output) -> str | None:
        """The last text of a trajectory that is not a tool's or the user's: what is compared with the expected one."""
        if output is not self.output:
            return None
        said = (step.text for step in reversed(self.steps) if step.role not in ("user", "tool", "system"))
        return next((text for text in said if text), None)

    def _output(self, output: Output | None) -> dict[str, Any]:
        if output is None:
            return {"status": "pending", "value": self._field("output", None), "error": None, "where": ""}
        error = getattr(output.outcome, "error", None)
        usage = usage_of(output.trace).values()
        metadata = {**output.metadata, **(error.metadata if error is not None else {})}
        return {
            "status": output.outcome.status,
            "value": self._field("output", self._shown("output", output.value)),
            "trajectory": steps_line(self._shown("output", output.value)),
            "answer": self._field("answer", self._answer(output)),
            "error": error_text(output.outcome),
            "where": error.where if error is not None else "",
            "seconds": output.service_seconds,
            "queue_seconds": output.queue_seconds,
            "cost": cost_of(usage),
            "tokens": {
                "input": sum(each.input_tokens for each in usage),
                "output": sum(each.output_tokens for each in usage),
            },
            "try": output.try_number,
            "metadata": self._field("output_metadata", metadata or None),
        }

    def _steps_between(self, start: int, stop: int) -> list[dict[str, Any]]:
        out = []
        for number, step in enumerate(self.steps[start:stop], start):
            name = f"step.{number}"
            result = step.tool_result
            content = step.text or (step.content if not isinstance(step.content, str) else None)
            if result is not None:
                out.append(
                    {
                        "number": number,
                        "kind": "tool result",
                        "name": result.name or "",
                        "text": self._field(f"{name}.text", result.content),
                        "arguments": self._field(f"{name}.none", None),
                        "error": result.error,
                        "calls": [],
                    }
                )
                continue
            out.append(
                {
                    "number": number,
                    "kind": step.role,
                    "name": "",
                    "text": self._field(f"{name}.text", content or None),
                    "arguments": self._field(f"{name}.none", None),
                    "error": False,
                    "calls": [
                        {
                            "name": call.name,
                            "arguments": self._field(
                                f"{name}.call.{place}", call.raw if call.raw is not None else call.arguments
                            ),
                            "malformed": call.malformed,
                        }
                        for place, call in enumerate(step.tool_calls[:STEPS])
                    ],
                }
            )
        return out

    def _call(self, name: str, call: Call) -> dict[str, Any]:
        usage = call.usage
        return {
            "kind": call.kind,
            "name": call.name,
            "input": self._field(f"{name}.input", call.input),
            "output": self._field(f"{name}.output", call.output),
            "error": call.error,
            "seconds": call.service_seconds or call.seconds,
            "cached": call.cached,
            "tokens": {
                "input": usage.input_tokens if usage else 0,
                "output": usage.output_tokens if usage else 0,
            },
            "cost": usage.cost if usage else None,
        }

    def _result(self, key: str, evaluation: Evaluation, tries: Sequence[ItemResult]) -> dict[str, Any]:
        if not tries:
            return {
                "key": key,
                "evaluation": evaluation.id,
                "status": "pending",
                "tries": [],
                "claims": [],
                "runs": [],
            }
        result = tries[-1]
        compared = f".{'..'.join(result.runs)}" if len(result.runs) > 1 else ""
        judged, name = judged_of(result), f"result.{key}{compared}"
        reasoning = judged.metadata.get("reasoning")
        return {
            "key": key,
            "evaluation": evaluation.id,
            "status": judged.status,
            "score": judged.score,
            "value": self._field(f"{name}.value", judged.value),
            "comment": self._field(f"{name}.comment", judged.comment)["text"],
            "error": judged.error,
            "reasoning": self._field(f"{name}.reasoning", reasoning)["text"] if reasoning is not None else "",
            "claims": _claims(judged.metadata.get("claims")),
            "metadata": self._field(f"{name}.metadata", judged.metadata or None),
            "seconds": result.service_seconds,
            "cost": cost_of(usage_of(result.trace).values()),
            "try": result.try_number,
            "reused_from": result.reused_from,
            "runs": list(result.runs),
            "tries": [
                {
                    "try": each.try_number,
                    "status": each.outcome.status,
                    "score": each.score,
                    "error": error_text(each.outcome),
                }
                for each in tries
            ],
            "calls": [
                self._call(f"{name}.call.{place}", each) for place, each in enumerate(result.trace[:20])
            ],
        }


def _claims(claims: Any) -> list[dict[str, Any]]:
    """The claims that a judge found in an output, in one shape."""
    out = []
    for each in claims[:MOST_CLAIMS] if isinstance(claims, list) else []:
        if isinstance(each, dict):
            text = each.get("claim", each.get("text", each.get("statement")))
            verdict = each.get("verdict", each.get("supported", each.get("label")))
            reason = each.get("reason", each.get("reasoning", each.get("evidence", "")))
            out.append(
                {"text": shown_text(text), "verdict": shown_text(verdict), "reason": shown_text(reason)}
            )
        else:
            out.append({"text": shown_text(each), "verdict": "", "reason": ""})
    return out


def item_of(
    run: Run,
    position: int,
    attempt: int,
    unit: str,
    sources: Mapping[str, Evaluation],
    evaluations: Sequence[Evaluation],
) -> ItemPage:
    """Read one item of a run, with all tries, its results and its comparisons with other runs.

    `sources` has the evaluation of each evaluator of single outputs; a comparison comes from the last of `evaluations`.
    """
    backend, data = run.store.backend, run.dataset
    if position not in run.selection(len(data)):
        raise UnknownName(f"the run has no example at position {position}")
    (row,) = data.scan(position, position + 1)
    outputs = [
        output_decoder.decode(each.payload) for each in backend.scan(run.number, position, position + 1)
    ]
    tries = [each for each in outputs if (each.attempt, each.unit) == (attempt, unit)]
    if not tries and (attempt > run.header.attempts or attempt < 1 or unit):
        raise UnknownName(
            f"the run has no attempt {attempt}{f', unit {unit!r}' if unit else ''} at {position}"
        )
    results: dict[tuple[str, tuple[str, ...]], tuple[Evaluation, list[ItemResult]]] = {
        (key, (run.id,)): (evaluation, []) for key, evaluation in sources.items()
    }
    used = {each.id for each in sources.values()}
    for evaluation in evaluations:
        comparing = {spec.key for spec in evaluation.header.evaluators if spec.kind != "single"}
        if not comparing and evaluation.id not in used:
            continue
        for each in backend.scan(evaluation.number, position, position + 1):
            result = result_decoder.decode(each.payload)
            if (result.attempt, result.unit) != (attempt, unit) or run.id not in result.runs:
                continue
            place = (result.key, tuple(result.runs))
            known = place in results and results[place][0].id == evaluation.id
            if result.key in comparing and not known:
                results[place] = (evaluation, [])
            if result.key in comparing or known:
                results[place][1].append(result)
    return ItemPage(run, position, attempt, unit, example_decoder.decode(row.payload), tries, results)


def compared_calls(first: ItemPage, second: ItemPage) -> dict[str, Any] | None:
    """The tool calls of two trajectories side by side, aligned; None where neither has any."""
    sides = []
    for item in (first, second):
        calls = [call for step in item.steps for call in step.tool_calls][:COMPARED_CALLS]
        sides.append(
            [f"{call.name} {call.raw if call.raw is not None else as_json(call.arguments)}" for call in calls]
        )
    if not sides[0] and not sides[1]:
        return None
    rows: list[dict[str, Any]] = []
    matcher = difflib.SequenceMatcher(None, sides[0], sides[1], autojunk=False)
    for tag, a, a_end, b, b_end in matcher.get_opcodes():
        for place in range(max(a_end - a, b_end - b)):
            one = sides[0][a + place] if a + place < a_end else None
            other = sides[1][b + place] if b + place < b_end else None
            rows.append({"first": shown_text(one), "second": shown_text(other), "same": tag == "equal"})
    divergence = next((place for place, row in enumerate(rows) if not row["same"]), None)
    text = "the same calls" if divergence is None else f"the calls differ from number {divergence + 1} on"
    return {"text": text, "first_divergence": divergence, "rows": rows}
