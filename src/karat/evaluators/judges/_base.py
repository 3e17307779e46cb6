"""The base of judges: settings, prompts, the parts of an item, and the metadata of a Result."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, TypedDict

import msgspec

from karat.errors import CannotJudge, KaratError, NotApplicable, RequestError
from karat.evaluators._base import Evaluator
from karat.evaluators.judges._core import (
    STOPS,
    Judge,
    JudgeFailure,
    Ledger,
    Prompt,
    Question,
    Vote,
    examples_text,
    prompt_of,
    scale_text,
    shipped,
)
from karat.evaluators.judges._replies import Contract
from karat.evaluators.judges._settings import JudgeLike, judge_settings
from karat.keys import fingerprint
from karat.paths import MISSING, parse
from karat.records import Call, Example, Output, Result
from karat.serialization import to_json_value
from karat.sync import run_plain
from karat.traces import Step, ToolCall, ToolResult, normalize

SCALE = {
    0: "not at all",
    1: "to a very small degree",
    2: "to a small degree; important parts are missing",
    3: "about half",
    4: "to a large degree; only minor parts are missing",
    5: "completely",
}
"""The default anchors of a graded score."""

UNDECIDED = "undecided"
ROOTS = ("input", "output", "expected", "metadata", "trace", "example")
"""Where a path may begin: `output.documents`, `input.question`, `trace`."""

_PASSAGE_TEXT = ("text", "page_content", "content", "passage", "document", "body")
_FAMILY = re.compile(r"[a-z]+", re.IGNORECASE)


class Case(msgspec.Struct, frozen=True):
    """One item to judge, as `evaluate` got it."""

    outputs: Any
    reference: Any
    inputs: Any
    context: Any
    """The keyword `context=`; MISSING where it was not given."""
    example: Example | None
    output: Output | None

    @property
    def in_stage(self) -> bool:
        """Whether a stage asks, which stores a skip, and not a person, who gets a Result."""
        return self.output is not None

    def roots(self) -> dict[str, Any]:
        """Return the values that paths start from."""
        trace = self.output.trace if self.output is not None else []
        example = self.example
        return {
            "input": self.inputs,
            "inputs": self.inputs,
            "output": self.outputs,
            "outputs": self.outputs,
            "expected": self.reference,
            "reference": self.reference,
            "metadata": example.metadata if example is not None else {},
            "example": example,
            "trace": trace,
        }


class JudgeOptions(TypedDict, total=False):
    """Keyword arguments of every judge. `question` and `answer` are paths such as `input.question`."""

    judge: JudgeLike | None
    prompt: str | None
    question: str | None
    answer: str | None
    question_key: str
    examples: Sequence[Mapping[str, Any]] | None


class ReferenceOptions(JudgeOptions, total=False):
    """Keyword arguments of a judge that compares with a reference."""

    reference: str | None


class ContextOptions(JudgeOptions, total=False):
    """Keyword arguments of a judge that reads retrieved passages."""

    context: str | None
    context_key: str


class AnswerOptions(ReferenceOptions, ContextOptions, total=False):
    """Keyword arguments of a judge that reads passages and compares with a reference."""


class JudgeEvaluator(Evaluator):
    """Base of the judges: `_judge` asks questions and returns a Result.

    The constructor declares the settings that judges share; a subclass accepts those that its `options` name.

    `judge` is a model such as openai/NAME, several as a jury, or settings (model, samples, temperature, max_tokens,
    …). `config` is the same, or the configuration of an annotation task. `prompt` is your own prompt: a text, or the
    path of a file. `question`, `answer`, `reference` and `context` are paths to what the judge is shown, such as
    output.documents. `question_key` is the field of the input that is the question. `context_key` is the field of the
    input that is the context. `examples` are judged answers that the judge is shown first. `use_reference` shows the
    expected output to the judge. `scale` describes the grades, as {0: wrong, 5: right}, or is the highest one.
    `pass_mark` is the score from which an answer passes.
    """

    is_async = True
    names_models = True
    template: ClassVar[str] = "criterion"
    options: ClassVar[type[JudgeOptions]] = AnswerOptions

    def __init__(
        self,
        config: JudgeLike | None = None,
        *,
        judge: JudgeLike | None = None,
        prompt: str | None = None,
        question: str | None = None,
        context: str | None = None,
        answer: str | None = None,
        reference: str | None = None,
        question_key: str = "question",
        context_key: str = "context",
        examples: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        super().__init__()
        who = self.name
        given: dict[str, Any] = {"context": context, "reference": reference}
        for part, value in given.items():
            if value is not None and part not in self.options.__annotations__:
                raise RequestError(f"{who} has no parameter {part!r}: it reads no {part}")
        self.settings = judge_settings(who, judge, config)
        self.prompt: Prompt = prompt_of(who, prompt, self.template)
        self._paths = {"question": question, "context": context, "answer": answer, "reference": reference}
        for part, path in self._paths.items():
            self._check_path(part, path)
        for part, key in (("question_key", question_key), ("context_key", context_key)):
            if not isinstance(key, str) or not key:
                raise RequestError(f"{who}: {part} must be the name of a field of the input")
        self.question_key, self.context_key = question_key, context_key
        self.examples = _examples(who, examples)
        self.params: dict[str, Any] = {}
        if self.settings.written:
            self.params["judge"] = self.settings.written
        given = {"prompt": prompt, **self._paths, "examples": self.examples or None}
        self.params.update({name: value for name, value in given.items() if value is not None})
        if question_key != "question":
            self.params["question_key"] = question_key
        if context_key != "context":
            self.params["context_key"] = context_key
        self._judge_core: Judge | None = None

    def _check_path(self, part: str, path: Any) -> None:
        if path is None:
            return
        if not isinstance(path, str) or not path:
            raise RequestError(f"{self.name}: {part} must be a path such as input.question, not {path!r}")
        if parse(path).steps[0] not in ROOTS:
            raise RequestError(
                f"{self.name}: {part} is {path!r}: a path begins with {', '.join(ROOTS)}, as in output.documents"
            )

    # What the results depend on ---------------------------------------------------------------------

    def configuration(self) -> Any:
        """Parameters, the identity of the models and the hash of the prompts; no secret."""
        params = {name: value for name, value in self.params.items() if name != "judge"}
        return {
            "params": to_json_value(params),
            "judge": self.settings.identity(),
            "prompts": [prompt.identity for prompt in [*self.prompts(), *self._consistency_prompts()]],
        }

    def prompts(self) -> list[Prompt]:
        """The templates this judge may use."""
        return [self.prompt]

    def _consistency_prompts(self) -> list[Prompt]:
        names = ("consistency", "consistency_parts") if self.settings.check_consistency else ()
        return [shipped(name) for name in names]

    @property
    def judge(self) -> Judge:
        """The core, made when the configuration is complete."""
        if self._judge_core is None:
            self._judge_core = Judge(
                self.settings, fingerprint(name=self.name, configuration=self.configuration())
            )
        return self._judge_core

    # Evaluating ---------------------------------------------------------------------------------------

    def evaluate(
        self,
        *,
        outputs: object = None,
        reference_outputs: object = None,
        inputs: object = None,
        context: object = MISSING,
        **more: Any,
    ) -> Result:
        """The judgment of one output; works alone, without a store, also inside a running event loop."""
        return run_plain(
            self.evaluate_async(
                outputs=outputs, reference_outputs=reference_outputs, inputs=inputs, context=context, **more
            )
        )

    async def evaluate_async(
        self,
        *,
        outputs: object = None,
        reference_outputs: object = None,
        inputs: object = None,
        context: object = MISSING,
        **more: Any,
    ) -> Result:
        """The judgment of one output."""
        example, output = more.get("example"), more.get("output")
        try:
            case = Case(
                to_json_value(outputs, "the output"),
                to_json_value(reference_outputs, "the reference"),
                to_json_value(inputs, "the input"),
                context if context is MISSING else to_json_value(context, "context"),
                example if isinstance(example, Example) else None,
                output if isinstance(output, Output) else None,
            )
            return await self._judge(case)
        except (KaratError, NotApplicable, *STOPS):
            raise
        except Exception as error:
            raise CannotJudge(f"{self.key}: {type(error).__name__}: {error}") from error

    async def _judge(self, case: Case) -> Result:
        raise NotImplementedError

    # The parts of an item ------------------------------------------------------------------------------

    def _configured_value(self, case: Case, part: str) -> Any:
        """Return the value at the configured path of a part; MISSING if no path is configured."""
        path = self._paths[part]
        if path is None:
            return MISSING
        parsed = parse(path)
        roots = case.roots()
        value: Any = to_json_value(roots[parsed.steps[0]], path)
        if len(parsed.steps) == 1:
            return value
        rest = path[len(parsed.steps[0]) :].lstrip(".")
        found = parse(rest).find(value)
        if found is MISSING:
            raise CannotJudge(f"{self.key}: {parsed.steps[0]} has {parse(rest).why_missing(value)}")
        return found

    def _question_text(self, case: Case) -> str:
        """The question: a configured path, the field of the input, or the input itself."""
        found = self._configured_value(case, "question")
        if found is not MISSING:
            return as_text(found)
        inputs = case.inputs
        if isinstance(inputs, dict):
            if inputs.get(self.question_key) is not None:
                return as_text(inputs[self.question_key])
            inputs = {name: value for name, value in inputs.items() if name != self.context_key} or None
        return "" if inputs is None else as_text(inputs)

    def _answer_text(self, case: Case) -> str:
        found = self._configured_value(case, "answer")
        value = case.outputs if found is MISSING else found
        if found is MISSING and isinstance(value, dict):
            names = [
                name for name in ("answer", "output", "text", "content", "final_answer") if name in value
            ]
            if len(names) == 1 and isinstance(value[names[0]], str):
                return str(value[names[0]])
        return "" if value is None else as_text(value)

    def _reference_text(self, case: Case) -> str | None:
        found = self._configured_value(case, "reference")
        value = case.reference if found is MISSING else found
        return None if value is None else as_text(value)

    def _passages(self, case: Case) -> list[str] | None:
        """The retrieved passages: the keyword wins over the input's field, which wins over a configured path."""
        if case.context is not MISSING and case.context is not None:
            return as_passages(case.context)
        if isinstance(case.inputs, dict) and case.inputs.get(self.context_key) is not None:
            return as_passages(case.inputs[self.context_key])
        found = self._configured_value(case, "context")
        return None if found is MISSING or found is None else as_passages(found)

    def _material(self, case: Case, use_reference: bool) -> dict[str, str]:
        """Question, context, reference and answer, as far as there are any; the answer always."""
        parts = {"question": self._question_text(case)}
        passages = self._passages(case)
        if passages is not None:
            parts["context"] = "\n\n".join(passages)
        reference = self._reference_text(case) if use_reference else None
        if reference is not None:
            parts["reference"] = reference
        parts["answer"] = self._answer_text(case)
        return {name: text for name, text in parts.items() if text or name == "answer"}

    def _needed_passages(self, case: Case) -> list[str]:
        passages = self._passages(case)
        if passages is None:
            raise CannotJudge(
                f"{self.key}: there is no context: give context=…, inputs[{self.context_key!r}], or a path such as"
                " context: output.documents"
            )
        return passages

    # Questions and results ------------------------------------------------------------------------------

    def _ask(
        self,
        contract: Contract,
        parts: Mapping[str, str],
        *,
        criterion: str = "",
        prompt: Prompt | None = None,
        scale: Mapping[int, str] | None = None,
    ) -> Question:
        slots = {
            "criterion": criterion,
            "scale": scale_text(scale) if scale else "",
            "choices": ", ".join(map(str, contract.values)) if contract.field == "choice" else "",
            "examples": examples_text(self.examples, contract.field),
        }
        return Question(
            prompt or self.prompt, contract, slots, {name: clean(text) for name, text in parts.items()}
        )

    def _metadata(
        self, case: Case, ledger: Ledger, votes: Sequence[Vote | JudgeFailure], **more: Any
    ) -> dict[str, Any]:
        """Return the metadata that every result of a judge has."""
        cast = [vote for vote in votes if isinstance(vote, Vote)]
        specs = self.settings.names
        out: dict[str, Any] = {
            **more,
            "reasoning": cast[0].analysis if cast else "",
            "model": specs[0] if len(specs) == 1 else specs,
            "served_model": next(iter(ledger.served), "") if len(ledger.served) <= 1 else list(ledger.served),
            "prompt": next(iter(ledger.prompts), "") if len(ledger.prompts) <= 1 else list(ledger.prompts),
            "usage": msgspec.to_builtins(ledger.usage),
            "requests": ledger.requests,
        }
        if cast:
            out["reply"] = cast[0].reply
        if len(votes) > 1:
            out["votes"] = [_describe_vote(vote) for vote in votes]
        inconsistent = sum(vote.consistent is False for vote in cast)
        if inconsistent:
            out["inconsistent_votes"] = inconsistent
        known = [vote.probabilities for vote in cast if vote.probabilities]
        if known:
            names = list(dict.fromkeys(name for each in known for name in each))
            out["probabilities"] = {
                name: sum(each.get(name, 0.0) for each in known) / len(known) for name in names
            }
        related = _same_family(specs, case.output)
        if related:
            out["note"] = f"the judge is of the same family as the judged model: {related}"
        return out

    def _not_applicable(self, case: Case, reason: str, ledger: Ledger, **metadata: Any) -> Result:
        """Skip the item in a stage; return a Result without a score in a direct call."""
        if case.in_stage:
            raise NotApplicable(reason)
        return Result(
            self.key,
            None,
            "not applicable",
            reason,
            {**metadata, **self._metadata(case, ledger, []), "applicable": False},
        )


def _describe_vote(vote: Vote | JudgeFailure) -> dict[str, Any]:
    if isinstance(vote, JudgeFailure):
        return {"model": vote.model, "error": vote.kind, "message": str(vote), "requests": vote.requests}
    out = {
        "model": vote.model,
        "served_model": vote.served_model,
        "value": vote.value,
        "reasoning": vote.analysis,
        "requests": vote.requests,
        "reply": vote.reply,
    }
    if vote.consistent is not None:
        out["consistent"] = vote.consistent
    if vote.probabilities:
        out["probabilities"] = vote.probabilities
    return out


def _examples(who: str, given: Any) -> list[dict[str, Any]]:
    if given is None:
        return []
    if (
        not isinstance(given, Sequence)
        or isinstance(given, str)
        or not all(isinstance(e, Mapping) for e in given)
    ):
        raise RequestError(f"{who}: examples must be a list of objects with the parts and the verdict")
    converted: list[dict[str, Any]] = to_json_value([dict(each) for each in given], "examples")
    return converted


def clean(text: str) -> str:
    """Text that can be sent: half characters (lone surrogates) are replaced."""
    return text.encode("utf-8", "replace").decode()


def as_text(value: object) -> str:
    """Return text unchanged and any other value as JSON."""
    if isinstance(value, str):
        return value
    return json.dumps(to_json_value(value), ensure_ascii=False, indent=1)


def as_passages(value: object) -> list[str]:
    """Retrieved passages: a text, a list of texts, or a list of objects with a text."""
    if isinstance(value, str):
        return [value] if value.strip() else []
    if isinstance(value, Mapping):
        for name in ("documents", "passages", "contexts", "results"):
            if isinstance(value.get(name), list):
                return as_passages(value[name])
        return [_passage(value)] if value else []
    if isinstance(value, (list, tuple)):
        return [text for each in value if (text := _passage(each)).strip()]
    return [as_text(value)]


def _passage(value: Any) -> str:
    if isinstance(value, Mapping):
        for name in _PASSAGE_TEXT:
            if isinstance(value.get(name), str):
                title = value.get("title")
                return f"{title}\n{value[name]}" if isinstance(title, str) and title else str(value[name])
    return "" if value is None else as_text(value)


def _same_family(specs: Sequence[str], output: Output | None) -> str:
    """The family that the judge and a model of the judged output's trace share; empty where none is known."""
    if output is None:
        return ""
    judges = {_family(spec) for spec in specs}
    for call in output.trace:
        if call.kind == "model" and _family(call.name) in judges and _family(call.name):
            return _family(call.name)
    return ""


def _family(spec: str) -> str:
    """`gpt` of `openai/gpt-4o-mini`: the first word of the model's name."""
    name = spec.partition("@")[0].rpartition("/")[2]
    match = _FAMILY.match(name)
    return match[0].lower() if match and len(match[0]) > 2 else ""


# Trajectories as text for a judge: numbered steps, nothing left out.


def trajectory_of(who: str, case: Case, at: object = MISSING) -> list[Step]:
    """The steps of an item: at a configured path, in the output, or recorded while the task ran."""
    value = case.outputs if at is MISSING else at
    recorded = case.output.trace if case.output is not None else []
    if at is not MISSING and _is_calls(value):
        return steps_of_calls(recorded)
    if isinstance(value, (str, int, float, bool)) or value is None:
        steps = steps_of_calls(recorded)
        if value is not None:
            steps.append(Step("assistant", value if isinstance(value, str) else json.dumps(value)))
        return steps
    found = normalize(value)
    lost = [part for part in found.unused if not part.harmless]
    if lost and not found.steps:
        raise CannotJudge(f"{who}: the trajectory cannot be read: {lost[0].where}: {lost[0].reason}")
    steps = list(found.steps)
    # A part that became no step may be what decides: the judge sees it as it is.
    steps += [Step("unread", json.dumps(part.value, ensure_ascii=False, default=str)) for part in lost]
    if not found.steps and recorded:
        return steps_of_calls(recorded) + steps
    return steps


def _is_calls(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(e, dict) and "kind" in e for e in value)


def steps_of_calls(calls: Sequence[Call]) -> list[Step]:
    """Recorded model and tool calls as steps."""
    steps = []
    for call in calls:
        if call.kind == "tool":
            arguments = call.input if isinstance(call.input, dict) else {"input": call.input}
            content = call.error if call.error is not None else call.output
            steps.append(Step("assistant", None, [ToolCall(None, call.name, arguments)]))
            steps.append(
                Step(
                    "tool", content, tool_result=ToolResult(None, call.name, content, call.error is not None)
                )
            )
        else:
            steps.append(Step("assistant", call.output if call.error is None else f"(failed: {call.error})"))
    return steps


def render_steps(steps: Sequence[Step], first: int = 1) -> list[str]:
    """Each step as text with its number."""
    return [f"Step {number} ({step.role}):\n{render(step)}" for number, step in enumerate(steps, first)]


def render(step: Step) -> str:
    """Render a step: its text, its tool calls with arguments, or a tool's result."""
    lines = []
    if step.tool_result is not None:
        result = step.tool_result
        head = f"result of {result.name or 'a tool'}" + (" (error)" if result.error else "")
        lines.append(f"{head}: {_text(result.content if result.content is not None else step.content)}")
    elif step.content is not None and step.content != "":
        lines.append(_text(step.content))
    for call in step.tool_calls:
        arguments = (
            call.raw if call.malformed else json.dumps(call.arguments, ensure_ascii=False, default=str)
        )
        lines.append(f"calls {call.name}({arguments})")
    return "\n".join(lines) or "(nothing)"


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(
        isinstance(each, dict) and each.keys() <= {"type", "text"} and isinstance(each.get("text"), str)
        for each in value
    ):
        return "\n".join(each["text"] for each in value)
    return json.dumps(value, ensure_ascii=False, default=str)
