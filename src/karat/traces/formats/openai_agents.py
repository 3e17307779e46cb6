"""Items of an OpenAI Agents SDK run: `tool_call_item` and the like, each around an item of the Responses API."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from karat.traces._objects import plain
from karat.traces.detection import placed
from karat.traces.detection import read as read_any
from karat.traces.steps import Step, UnreadCall, Unused, rest

name = "openai_agents"


def detect(value: object) -> bool:
    """An item with a `raw_item`."""
    if not isinstance(value, dict) or "raw_item" not in value:
        return False
    kind = value.get("type")
    return isinstance(kind, str) and kind.endswith("_item")


def read(value: dict[str, Any]) -> Iterator[Step | Unused]:
    """Yield the steps of the raw item; the item's own fields are extras of the first."""
    item = plain(value["raw_item"])
    if not isinstance(item, dict):
        yield UnreadCall("raw_item", "an item without its raw item", value)
        return
    beside = rest(value, "raw_item", "type", "output")
    if not isinstance(beside.get("agent"), (dict, str, type(None))):
        # The object carries its whole configuration: tools, models, guardrails.
        beside["agent"] = {"name": str(getattr(beside["agent"], "name", ""))}
    if value["type"] in ("mcp_list_tools_item", "handoff_occured_item"):
        yield Unused("", f"{value['type']} is not a message", {**beside, "raw_item": item}, harmless=True)
        return
    for part in placed(read_any(item), "raw_item"):
        if isinstance(part, Step) and beside:
            part, beside = msgspec.structs.replace(part, extra={**part.extra, **beside}), {}
        yield part
    if value.get("output") is not None and value["output"] != item.get("output"):
        yield Unused(
            "output", "the output of the tool as an object", value["output"], harmless=True, reviewed=True
        )
