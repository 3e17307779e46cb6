"""A node: a function from the state of a record to what it adds. Put a model in its place."""

from typing import Any

CAPITALS = {
    "France": "Paris",
    "Japan": "tokyo",
    "Kenya": "Nairobi",
    "Peru": "Lima",
    "Norway": "Oslo",
    "Canada": "Toronto",
    "Egypt": "Cairo",
}


def answer(state: dict[str, Any]) -> dict[str, Any]:
    """The capital of the country that the question names."""
    found = [capital for country, capital in CAPITALS.items() if country in state["question"]]
    return {"predicted_answer": found[0] if found else "unknown"}
