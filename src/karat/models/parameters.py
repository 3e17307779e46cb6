"""The parameters of a request: which there are, what each may be, and one sentence about what is not."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from typing import Any

from karat.errors import RequestError, did_you_mean
from karat.models.messages import check_extra, is_secret

PARAMETERS = ("temperature", "max_tokens", "seed", "stop", "tools", "tool_choice", "n", "extra")


def check_parameters(given: Mapping[str, Any]) -> None:
    """Refuses what no call could take: the defaults of a model are told before the first of them is made."""
    for name, value in given.items():
        if name not in PARAMETERS:
            raise RequestError(unknown_parameter(name, value))
        if value is not None:
            _READ[name](name, value)


def unknown_parameter(name: str, value: Any) -> str:
    """What to say about a parameter that karat does not have: the nearest one, or how to send it all the same."""
    shown = repr(value) if isinstance(value, (int, float)) and not is_secret(name) else "…"
    return (
        f"no parameter {name!r}: {did_you_mean(name, PARAMETERS)}; "
        f"other fields of the body are written extra: {{{name}: {shown}}}"
    )


def number(name: str, value: Any) -> float:
    """A temperature."""
    if type(value) is not float:  # the usual kind is not looked at twice: this is done for every call
        if not isinstance(value, Real) or isinstance(value, bool):
            raise RequestError(f"{name} is {_shown(value)}: a number from 0 up is expected")
        value = float(value)
    if not 0.0 <= value < math.inf:
        raise RequestError(f"{name} is {value}: a number from 0 up is expected")
    return float(value)


def whole(name: str, value: Any) -> int:
    """A seed."""
    if type(value) is int:
        return value
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise RequestError(f"{name} is {_shown(value)}: a whole number is expected")
    return int(value)


def count(name: str, value: Any) -> int:
    """A number of tokens or answers."""
    if not isinstance(value, Integral) or isinstance(value, bool) or value < 1:
        raise RequestError(f"{name} is {_shown(value)}: a whole number from 1 up is expected")
    return int(value)


def stops(name: str, value: Any) -> list[str]:
    """Texts at which an answer ends."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, Sequence) or not all(isinstance(each, str) for each in value):
        raise RequestError(f"{name} is {_shown(value)}: a text or a list of texts is expected")
    return list(value)


def tool_list(name: str, value: Any) -> list[dict[str, Any]]:
    """Tools that the model may call."""
    if not isinstance(value, Sequence) or not all(isinstance(tool, Mapping) for tool in value):
        raise RequestError(f"{name} is {_shown(value)}: {_TOOLS} is expected")
    for tool in value:
        if "function" in tool and not (
            isinstance(tool["function"], Mapping) and isinstance(tool["function"].get("name"), str)
        ):
            raise RequestError(f"{name} has a function without a name: {_TOOLS} is expected")
    return [dict(tool) for tool in value]


def choice_of_tool(name: str, value: Any) -> Any:
    """Whether a tool is to be called, and which."""
    if not isinstance(value, (str, Mapping)):
        raise RequestError(
            f"{name} is {_shown(value)}: auto, none, required or {{type, function}} is expected"
        )
    return value


def body_fields(name: str, value: Any) -> dict[str, Any]:
    """Fields that go into the body as they are."""
    if not isinstance(value, Mapping):
        raise RequestError(f"{name} is {_shown(value)}: fields of the body, {{name: value}}, are expected")
    return check_extra(value)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:59]}…"


_TOOLS = "a list of {type: function, function: {name, parameters}}"

_READ = {
    "temperature": number,
    "max_tokens": count,
    "seed": whole,
    "stop": stops,
    "tools": tool_list,
    "tool_choice": choice_of_tool,
    "n": count,
    "extra": body_fields,
}
