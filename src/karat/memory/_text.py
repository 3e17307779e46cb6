"""How dialogue becomes text: a turn with its time and speaker, the token count of a text, abbreviations."""

from __future__ import annotations

import re
from datetime import datetime

from karat.memory._dialogue import Turn

_TOKEN = re.compile(r"[^\W\d_⺀-鿿가-힯]{1,8}|\d{1,3}|\S")


def turn_text(turn: Turn) -> str:
    """A turn as memory systems store it: `[2024-05-01 09:30] speaker: text`."""
    when = time_text(turn.time)
    return f"[{when}] {turn.speaker}: {turn.text}" if when else f"{turn.speaker}: {turn.text}"


def time_text(time: str | None) -> str:
    """A time of the dialogue, shortened to the minute where it is ISO 8601; otherwise as the dataset writes it."""
    if not time:
        return ""
    moment = parse_time(time)
    if moment is None:
        return " ".join(time.split())
    has_clock = len(time.strip()) > len("2024-05-01")
    return moment.strftime("%Y-%m-%d %H:%M") if has_clock else moment.strftime("%Y-%m-%d")


def parse_time(time: str | None) -> datetime | None:
    """An ISO 8601 time as a datetime without a time zone; None for any other text."""
    if not time:
        return None
    try:
        return datetime.fromisoformat(time.strip()).replace(tzinfo=None)
    except ValueError:
        return None


def count_tokens(text: str) -> int:
    """The number of tokens of a text by a fixed rule, the same for every system and every model.

    A token is up to 8 letters, up to 3 digits, one ideograph or one other character. English text gives about as
    many tokens as current providers count.
    """
    return sum(1 for _ in _TOKEN.finditer(text))


def cut_tokens(text: str, budget: int) -> str:
    """The beginning of a text, at most `budget` tokens long."""
    if budget <= 0:
        return ""
    if len(text) <= budget:
        return text
    for number, token in enumerate(_TOKEN.finditer(text), 1):
        if number > budget:
            return text[: token.start()].rstrip()
    return text


def abbreviation(question_type: str) -> str:
    """The initials of a question type, for a dataset that has no abbreviations: `multi_hop` gives `MH`; always text."""
    return "".join(word[0] for word in re.findall(r"[^\W_]+", question_type)).upper() or "NA"
