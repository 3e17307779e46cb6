"""What a record carries through a graph: its state, and messages as the functions of a task see them."""

from __future__ import annotations

import copy
from typing import Any

START = "START"
END = "END"
ENDINGS = (END, "__end__")
"""What a condition may return to end: the word of the YAML, and the constant of tasks written for SyGra."""

CHAT_HISTORY = "__chat_history__"
"""Where the turns of nodes with `chat_history: true` are kept; names like this never reach an output."""

_ROLES = {"human": "user", "ai": "assistant"}


def own(value: Any) -> Any:
    """A value of the file or the command line for one record, which may change it: lists and mappings are copied."""
    return copy.deepcopy(value) if isinstance(value, (list, dict)) else value


class SygraState(dict[str, Any]):
    """The variables of one record. Nodes read and change it; no two records share one."""


class Message(dict[str, Any]):
    """`{role, content}`, whose parts are also attributes, as the functions of tasks ask for them."""

    def __init__(self, content: Any = "", role: str = "assistant", tool_calls: Any = (), **more: Any) -> None:
        super().__init__(role=role, content=content, **more)
        if tool_calls:
            self["tool_calls"] = list(tool_calls)

    @property
    def content(self) -> Any:
        """The text, or the parts."""
        return self["content"]

    @property
    def role(self) -> str:
        """`user`, `assistant`, `system` or `tool`."""
        return str(self["role"])

    @property
    def type(self) -> str:
        """The role in the words that tasks written for SyGra compare with: `ai`, `human`, `system`."""
        return {"user": "human", "assistant": "ai"}.get(self.role, self.role)

    @property
    def tool_calls(self) -> list[Any]:
        """The tools the model wants called: `{id, name, args}` each."""
        return list(self.get("tool_calls", ()))


class SygraMessage:
    """What a post-processor gets: the message a model answered with, as `.message`."""

    def __init__(self, msg: Any) -> None:
        self._message = msg

    @property
    def message(self) -> Any:
        """The message."""
        return self._message

    def __str__(self) -> str:
        content = getattr(self._message, "content", self._message)
        return content if isinstance(content, str) else str(content)


def as_message(given: Any) -> dict[str, Any]:
    """A message of the conversation in a state: a mapping, or an object with `type` or `role` and `content`."""
    if isinstance(given, dict):
        return {"role": given.get("role", "user"), "content": given.get("content", "")}
    if isinstance(given, str):
        return {"role": "user", "content": given}
    kind = str(getattr(given, "role", None) or getattr(given, "type", "user"))
    return {"role": _ROLES.get(kind, kind), "content": getattr(given, "content", "")}
