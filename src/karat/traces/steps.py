"""What a trajectory is made of: steps, tool calls and their results, whatever format they came from."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from karat.errors import CannotJudge, RequestError


class TraceError(RequestError, CannotJudge):
    """A value that cannot be read as a trajectory, or a trajectory that cannot be judged."""


class ToolCall(msgspec.Struct, frozen=True):
    """A tool the agent asked for, with the arguments it gave."""

    id: str | None
    name: str
    arguments: Any = {}
    """The arguments as values, nearly always a dict."""
    raw: str | None = None
    """The arguments as they were written, where they could not be read; `arguments` is then empty."""
    extra: dict[str, Any] = {}
    """Whatever else the format said about the call."""

    @property
    def malformed(self) -> bool:
        """Whether the arguments could not be read."""
        return self.raw is not None

    def to_dict(self) -> dict[str, Any]:
        """All fields as a dict."""
        return {
            "id": self.id,
            "name": self.name,
            "arguments": self.arguments,
            "raw": self.raw,
            "extra": self.extra,
        }


class ToolResult(msgspec.Struct, frozen=True):
    """What a tool gave back."""

    call_id: str | None = None
    name: str | None = None
    content: Any = None
    error: bool = False
    """Whether the tool said that it failed."""

    def to_dict(self) -> dict[str, Any]:
        """All fields as a dict."""
        return {"call_id": self.call_id, "name": self.name, "content": self.content, "error": self.error}


class Step(msgspec.Struct, frozen=True):
    """One message of a trajectory: what was said, which tools were asked for, or what a tool gave back."""

    role: str
    """`user`, `assistant`, `system`, `tool`, or the format's own word."""
    content: Any = None
    """Text, or the content blocks as they were given."""
    tool_calls: list[ToolCall] = []
    tool_result: ToolResult | None = None
    extra: dict[str, Any] = {}
    """Whatever else the format said about the message."""

    @property
    def text(self) -> str:
        """The text of the content, without its other blocks."""
        return text_of(self.content)

    def to_dict(self) -> dict[str, Any]:
        """All fields as dicts and lists; `normalize` reads it back."""
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
    """The place, as a path: `[3].tool_calls[0]`."""
    reason: str
    value: Any = None
    harmless: bool = False
    """Whether it holds no step of its own: a span that only groups others, the envelope of the messages."""

    def to_dict(self) -> dict[str, Any]:
        """All fields as a dict."""
        return {"where": self.where, "reason": self.reason, "value": self.value, "harmless": self.harmless}


class Trajectory(msgspec.Struct, frozen=True):
    """The steps of an agent in order, and the list of whatever could not be used."""

    steps: list[Step] = []
    unused: list[Unused] = []

    @property
    def calls(self) -> list[ToolCall]:
        """All tool calls, in order."""
        return [call for step in self.steps for call in step.tool_calls]

    @property
    def is_plain_text(self) -> bool:
        """Whether it is nothing but bare text that came in no format: an answer, hardly a trajectory."""
        return bool(self.steps) and all(step.extra.get("format") == "text" for step in self.steps)

    def to_dict(self) -> dict[str, Any]:
        """All steps as dicts and lists; `normalize` reads it back."""
        return {
            "steps": [step.to_dict() for step in self.steps],
            "unused": [part.to_dict() for part in self.unused],
        }


def text_of(content: Any) -> str:
    """The text of a message's content, be it text or a list of blocks."""
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
    """Whether a block is what a model thought, which it did not say."""
    return block.get("type") in ("reasoning", "thinking") or block.get("thought") is True


def plain_text(text: str) -> Step:
    """A step for bare text that came in no format."""
    return Step("assistant", text, extra={"format": "text"})


def system_steps(prompt: Any) -> list[Step]:
    """The step of a system prompt that stands beside the messages: text, blocks, or parts."""
    if isinstance(prompt, dict) and isinstance(prompt.get("parts"), list):
        parts, extra = prompt["parts"], rest(prompt, "parts", "role")
        only = parts[0] if len(parts) == 1 else None
        plain_one = isinstance(only, dict) and only.keys() == {"text"}
        return [Step("system", only["text"] if plain_one and isinstance(only, dict) else parts, extra=extra)]
    return [Step("system", prompt)] if isinstance(prompt, (str, list)) and prompt else []


def rest(message: dict[str, Any], *used: str) -> dict[str, Any]:
    """What a message says beside the fields that were used; empty fields say nothing."""
    # Keys become text, as they would in JSON: what is kept has to be readable again.
    return {str(key): value for key, value in message.items() if key not in used and value is not None}


def text_or_none(value: Any) -> str | None:
    """An identifier as text: some exporters write numbers."""
    return value if value is None or isinstance(value, str) else str(value)
