"""What kind of failure an item's failure is: what failures are counted by, where there are many."""

from __future__ import annotations

from karat.records import Failure


def kind_of(error: Failure) -> tuple[str, str]:
    """The kind of a failure and its message: of a graph by the node that failed and what failed in it."""
    node = error.metadata.get("node")
    head = f"node {node}: "
    if not node or not error.message.startswith(head):
        return error.type, error.message
    kind, _, message = error.message.removeprefix(head).partition(": ")
    return head + kind, message
