"""Names of choices: YAML reads a bare yes and no as booleans, and numbers as numbers."""

from __future__ import annotations

from karat.errors import RequestError


def choice_name(who: str, value: object) -> str:
    """A choice as text: `True` is what YAML made of yes, `False` of no."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str) and value.strip():
        return value.strip()
    if isinstance(value, (int, float)):
        return f"{value:g}"
    raise RequestError(f"{who}: a choice has to be text, not {value!r}: put it in quotes")
