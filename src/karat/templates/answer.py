"""The task: a function from an example's input to its output. Put a model call in its place."""

CAPITALS = {
    "France": "Paris",
    "Japan": "tokyo",
    "Kenya": "Nairobi",
    "Peru": "Lima",
    "Norway": "Oslo",
    "Canada": "Toronto",
    "Egypt": "Cairo",
}


def answer(question: str) -> str:
    """The capital of the country that the question names."""
    for country, capital in CAPITALS.items():
        if country in question:
            return capital
    return "unknown"
