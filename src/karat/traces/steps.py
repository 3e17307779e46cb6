"""The parts of a trajectory: steps, tool calls and their results, independent of the format they came from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from karat.errors import CannotJudge, RequestError


class TraceError(RequestError, CannotJudge):
    """A value cannot be read as a trajectory, or a trajectory cannot be judged."""


class ToolCall(msgspec.Struct, frozen=True):
    """A request of the agent to run a tool, with its arguments."""

    id: str | None
    name: str
    arguments: Any = {}
    """The arguments as values, nearly always a dict."""
    raw: str | None = None
    """The text of the arguments where it is not valid JSON; `arguments` is then empty."""
    extra: dict[str, Any] = {}
    """The other fields of the call."""

    @property
    def args(self) -> Any:
        """An alias of `arguments`."""
        return self.arguments

    @property
    def malformed(self) -> bool:
        """Whether the arguments could not be read."""
        return self.raw is not None

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as a dict."""
        return {
            "id": self.id,
            "name": self.name,
            "arguments": self.arguments,
            "raw": self.raw,
            "extra": self.extra,
        }


class ToolResult(msgspec.Struct, frozen=True):
    """The result of a tool call."""

    call_id: str | None = None
    name: str | None = None
    content: Any = None
    error: bool = False
    """Whether the tool reported a failure."""

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as a dict."""
        return {"call_id": self.call_id, "name": self.name, "content": self.content, "error": self.error}


class Step(msgspec.Struct, frozen=True):
    """One message of a trajectory: its content, its tool calls, or a tool's result."""

    role: str
    """`user`, `assistant`, `system`, `tool`, or the format's own role."""
    content: Any = None
    """Text, or a list of content blocks in the format's own shape."""
    tool_calls: list[ToolCall] = []
    tool_result: ToolResult | None = None
    extra: dict[str, Any] = {}
    """The other fields of the message."""

    @property
    def text(self) -> str:
        """The text of the content, without other blocks."""
        return text_of(self.content)

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as dicts and lists, which `normalize` reads back."""
        return {
            "role": self.role,
            "content": self.content,
            "tool_calls": [call.to_dict() for call in self.tool_calls],
            "tool_result": None if self.tool_result is None else self.tool_result.to_dict(),
            "extra": self.extra,
        }


class Unused(msgspec.Struct, frozen=True):
    """A part of a trace that became no step, and why."""

    where: str
    """The path of the part: `[3].tool_calls[0]`."""
    reason: str
    value: Any = None
    harmless: bool = False
    """Whether it holds no step of its own: a span that only groups others, the envelope of the messages."""
    reviewed: bool = False
    """Whether calls in it are known not to belong to the trajectory: another choice, a repeated state."""
    repeats: bool = False
    """Whether it is a message that was read before and is written differently here: its calls are copies."""

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as a dict."""
        return {
            "where": self.where,
            "reason": self.reason,
            "value": self.value,
            "harmless": self.harmless,
            "reviewed": self.reviewed,
            "repeats": self.repeats,
        }


class UnreadCall(Unused, frozen=True):
    """A tool call that cannot be read. `normalize` raises a `TraceError` for it: it must not count as absent."""


class Trajectory(msgspec.Struct, frozen=True):
    """The steps of an agent in order, and the parts that could not be used. Iterating gives the steps."""

    steps: list[Step] = []
    unused: list[Unused] = []

    def __iter__(self) -> Iterator[Step]:
        return iter(self.steps)

    def __len__(self) -> int:
        return len(self.steps)

    def __getitem__(self, position: int) -> Step:
        return self.steps[position]

    def __bool__(self) -> bool:
        return True

    @property
    def calls(self) -> list[ToolCall]:
        """The tool calls of all steps, in order."""
        return [call for step in self.steps for call in step.tool_calls]

    @property
    def is_plain_text(self) -> bool:
        """Whether it is only text without a format: an answer, not a trajectory."""
        return bool(self.steps) and all(step.extra.get("format") == "text" for step in self.steps)

    def to_dict(self) -> dict[str, Any]:
        """Return all steps as dicts and lists, which `normalize` reads back."""
        return {
            "steps": [step.to_dict() for step in self.steps],
            "unused": [part.to_dict() for part in self.unused],
        }


def text_of(content: object) -> str:
    """Return the text of a message's content, which is text or a list of blocks."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    return "\n".join(_texts(content))


def _texts(blocks: list[Any]) -> Iterable[str]:
    for block in blocks:
        if isinstance(block, str):
            yield block
        elif isinstance(block, dict) and not _is_thought(block):
            text = block.get("text", block.get("content"))
            if isinstance(text, str):
                yield text


def _is_thought(block: dict[str, Any]) -> bool:
    """Return whether a block is reasoning, which is not part of the message's text."""
    return block.get("type") in ("reasoning", "thinking") or block.get("thought") is True


def plain_text(text: str) -> Step:
    """Return a step for text without a format."""
    return Step("assistant", text, extra={"format": "text"})


def system_steps(prompt: object) -> list[Step]:
    """Return the step of a system prompt beside the messages: text, blocks, or parts."""
    if isinstance(prompt, dict) and isinstance(prompt.get("parts"), list):
        parts, extra = prompt["parts"], rest(prompt, "parts", "role")
        only = parts[0] if len(parts) == 1 else None
        plain_one = isinstance(only, dict) and only.keys() == {"text"}
        return [Step("system", only["text"] if plain_one and isinstance(only, dict) else parts, extra=extra)]
    return [Step("system", prompt)] if isinstance(prompt, (str, list)) and prompt else []


def rest(message: dict[str, Any], *used: str) -> dict[str, Any]:
    """Return the fields of a message that were not used, without those that are None."""
    # Keys become text, as in JSON, so that a trajectory can be read back.
    return {str(key): value for key, value in message.items() if key not in used and value is not None}


def text_or_none(value: object) -> str | None:
    """Return an identifier as text: some exporters write numbers."""
    return value if value is None or isinstance(value, str) else str(value)
