"""The state of a record in a graph, and messages as the functions of a task see them."""

from __future__ import annotations

import copy
from contextvars import ContextVar
from itertools import pairwise
from typing import Any

import msgspec

START = "START"
END = "END"
ENDINGS = (END, "__end__")
"""What a condition may return to end: the word of the YAML, and the constant of tasks written for SyGra."""

MESSAGES = "messages"
"""The conversation of a record. A node that returns messages adds to it."""

CHAT_HISTORY = "__chat_history__"
"""What nodes with `chat_history: true` asked and were answered: `{name, request, response}` each, in order.

Data may bring earlier turns as `{role, content}`. Names like this reach an output only when `output_map` names them.
"""

APPENDED = (MESSAGES, CHAT_HISTORY)
"""Variables that grow: what a node returns for them is appended, as the reducers of LangGraph do it."""
_APPENDED = frozenset(APPENDED)

_ROLES = {"human": "user", "ai": "assistant"}


def own(value: object) -> Any:
    """A value of the file or the command line for one record, which may change it: lists and mappings are copied."""
    return copy.deepcopy(value) if isinstance(value, (list, dict)) else value


def mutable_copy(value: object, done: dict[int, Any] | None = None) -> Any:
    """A value whose dicts, lists and sets can be changed without changing those of the other; objects are shared."""
    if type(value) in _PLAIN or not isinstance(value, (dict, list, tuple, set)):
        return value
    done = {} if done is None else done
    if id(value) in done:
        return done[id(value)]
    if isinstance(value, tuple):
        return tuple(mutable_copy(item, done) for item in value) if type(value) is tuple else value
    made: Any = copy.copy(value)
    done[id(value)] = made
    if isinstance(made, dict):
        for key, item in made.items():
            made[key] = mutable_copy(item, done)
    elif isinstance(made, list):
        made[:] = [mutable_copy(item, done) for item in made]
    return made


_PLAIN = frozenset({str, int, float, bool, type(None)})


PLACE: ContextVar[tuple[int, ...]] = ContextVar("place", default=())
"""Where the running node is: its distance from the start and its number in the file, for each graph it is nested in."""


class SygraState(dict[str, Any]):
    """The variables of one record. Nodes read and change it; no two records share one.

    `messages` and `__chat_history__` are empty lists until something is added to them. What branches add in parallel
    is sorted by the order of the plan when all of them are done, whichever was first.
    """

    appended: list[tuple[tuple[int, ...], str, list[Any]]] | None = None
    """Where branches may run in parallel: the place in the plan of each part that was appended, the key, the items."""

    copied: dict[str, tuple[list[Any], int]] | None = None
    """In a copy that a node works on: its own lists of `messages` and `__chat_history__`, and their first length."""

    def mutable_copy(self) -> SygraState:
        """A copy that can be changed, also inside of its values, without changing this one."""
        made: SygraState = mutable_copy(SygraState(self))
        lists = {key: made[key] for key in APPENDED if isinstance(made.get(key), list)}
        made.copied = {key: (each, len(each)) for key, each in lists.items()}
        return made

    def added(self, given: object) -> Any:
        """The additions of a function to this copy: of its lists, only the new elements."""
        if not self.copied or not isinstance(given, dict):
            return given
        given = dict(given)
        for key, (own_list, length) in self.copied.items():
            if given.get(key) is own_list:
                given[key] = own_list[length:]
                if not given[key]:
                    del given[key]
        return given

    def append(self, key: str, items: list[Any]) -> None:
        """Append to `messages` or `__chat_history__`."""
        self[key] = [*(self.get(key) or ()), *items]
        if self.appended is not None:
            self.appended.append((PLACE.get(), key, items))

    def sort_appended(self) -> None:
        """Sort what was appended by its place in the plan; where code changed the list itself, it stays as it is."""
        done = self.appended or []
        if all(one[0] <= other[0] for one, other in pairwise(done)):
            return
        ordered = sorted(done, key=lambda part: part[0])
        for key in APPENDED:
            there, added = self.get(key) or [], _items(done, key)
            start = len(there) - len(added)
            if start >= 0 and all(one is other for one, other in zip(there[start:], added, strict=True)):
                self[key] = [*there[:start], *_items(ordered, key)]
        self.appended = ordered

    def __missing__(self, key: str) -> Any:
        if key not in APPENDED:
            raise KeyError(key)
        found: list[Any] = []
        self[key] = found
        return found

    def merge(self, given: object, who: str) -> None:
        """Add what a function of the task returned: a mapping, this state itself, or nothing.

        Lists that are given for `messages` and `__chat_history__` are appended to those that are there; the same
        list object again, as in a state that is handed back, adds nothing.
        """
        if given is None or given is self:
            return
        if not isinstance(given, dict):
            raise TypeError(
                f"{who} returned {type(given).__name__}: return the state, or a mapping of what it adds"
            )
        if _APPENDED.isdisjoint(given):
            self.update(given)
            return
        before = [(key, self.get(key, ())) for key in APPENDED if key in given]
        self.update(given)
        for key, old in before:
            new = given[key]
            if new is not old and (old != () or isinstance(new, list)):
                self[key] = old
                self.append(key, list(new) if isinstance(new, (list, tuple)) else [new])


def _items(parts: list[tuple[tuple[int, ...], str, list[Any]]], key: str) -> list[Any]:
    return [item for _, name, items in parts if name == key for item in items]


class Message(dict[str, Any]):
    """`{role, content}`, whose parts are also attributes, as the functions of tasks ask for them."""

    def __init__(self, content: Any = "", role: str = "assistant", tool_calls: Any = (), **more: Any) -> None:
        if isinstance(content, Message):
            super().__init__({**content, **more})
            return
        super().__init__(role=role, content=content, **more)
        if tool_calls:
            self["tool_calls"] = list(tool_calls)

    @property
    def content(self) -> Any:
        """The text, or the list of parts."""
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
    def name(self) -> str | None:
        """The node or agent that wrote the message."""
        return self.get("name")

    @property
    def tool_calls(self) -> list[Any]:
        """The tools the model wants called: `{id, name, args}` each."""
        return list(self.get("tool_calls", ()))


class SygraMessage:
    """The argument of a post-processor: the model's message as `.message`, and its attributes.

    SyGra gives a function the message itself, and a class this object.
    """

    def __init__(self, msg: object) -> None:
        self._message = msg

    @property
    def message(self) -> Any:
        """The message."""
        return self._message

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._message, name)

    def __str__(self) -> str:
        content = getattr(self._message, "content", self._message)
        return content if isinstance(content, str) else str(content)


def as_message(given: object) -> dict[str, Any]:
    """A message of the conversation in a state: a mapping, or an object with `type` or `role` and `content`.

    Calls of tools are in OpenAI's form, and their results name the call, since providers refuse one without the other.
    """
    if isinstance(given, str):
        return {"role": "user", "content": given}
    part = given if isinstance(given, dict) else {key: getattr(given, key, None) for key in _MESSAGE}
    kind = str(part.get("role") or part.get("type") or "user")
    content = part.get("content")
    message = {"role": _ROLES.get(kind, kind), "content": "" if content is None else content}
    if calls := part.get("tool_calls"):
        calls = [calls] if isinstance(calls, dict) else calls
        message["tool_calls"] = [_openai_call(call) for call in calls]
    if call_id := part.get("tool_call_id"):
        message["tool_call_id"] = call_id
    return message


_MESSAGE = ("role", "type", "content", "tool_calls", "tool_call_id")


def _openai_call(call: Any) -> Any:
    """A call of a tool as OpenAI writes it; LangChain's is `{id, name, args}`."""
    if not isinstance(call, dict) or "function" in call:
        return call
    arguments = msgspec.json.encode(call.get("args") or {}).decode()
    function = {"name": call.get("name"), "arguments": arguments}
    return {"id": call.get("id"), "type": "function", "function": function}
