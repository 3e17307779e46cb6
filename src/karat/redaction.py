"""Removes secrets from text that is stored or printed, in every form in which a program may repeat them.

A server that quotes a key quotes it as JSON, as a URL or as base64. One `Redactor` knows all of these forms of its
secrets; models use it for replies, traces and messages, stores for addresses and driver errors.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Mapping
from typing import Any

MASK = "[secret]"

SHORTEST = 8
"""Characters. A shorter value is a placeholder, and removing it would spoil ordinary text."""

_BACKSLASHES = r"\\{1,8}"
"""Text inside of JSON inside of JSON has its backslashes doubled each time. Bounded: a run of them is read once."""

_JSON_ESCAPES = {'"': '"', "\\": r"\\", "/": "/", "\b": "b", "\f": "f", "\n": "n", "\r": "r", "\t": "t"}


_SECRET_NAME = re.compile(
    r"api[_-]?key|authori[sz]ation|password|passwd|(?:client|shared|api)[_-]?secret|(?:access|auth|api|bearer)[_-]?token",
    re.IGNORECASE,
)


def without_secrets(value: object) -> Any:
    """A copy of JSON values without the fields that hold a key or a password by their name."""
    if isinstance(value, Mapping):
        return {
            name: without_secrets(each)
            for name, each in value.items()
            if not (isinstance(name, str) and isinstance(each, str) and _SECRET_NAME.fullmatch(name))
        }
    if isinstance(value, (list, tuple)):
        return [without_secrets(each) for each in value]
    return value


class Redactor:
    """Replaces secrets by `[secret]`: as they are, JSON- and `\\u`-escaped, percent-encoded, in base64 and in hex."""

    def __init__(self, secrets: Iterable[str], *, shortest: int = SHORTEST) -> None:
        self.secrets = tuple(sorted({s for s in secrets if len(s) >= shortest}, key=len, reverse=True))
        literals: list[bytes] = []
        for secret in self.secrets:
            literals += [secret.encode(), *_base64_forms(secret), *_hex_forms(secret)]
        self._literals = tuple(dict.fromkeys(literals))
        # Only these characters are escaped by ordinary JSON writers; the rest appears in \u and % forms alone.
        self._special = any(c in _JSON_ESCAPES or ord(c) < 0x20 for s in self.secrets for c in s)
        self._escaped = (
            re.compile("|".join(_escaped_pattern(secret) for secret in self.secrets).encode())
            if self.secrets
            else None
        )

    def __bool__(self) -> bool:
        return bool(self.secrets)

    def in_bytes(self, data: bytes) -> bytes:
        """The UTF-8 text without the secrets; JSON stays JSON."""
        # The common case costs a few searches for a literal: this is done for every reply.
        for literal in self._literals:
            if literal in data:
                data = data.replace(literal, MASK.encode())
        if self._escaped is not None and (
            b"%" in data or b"\\u" in data or b"\\U" in data or (self._special and b"\\" in data)
        ):
            data = self._escaped.sub(MASK.encode(), data)
        return data

    def in_text(self, text: str) -> str:
        """The text without the secrets."""
        if not self.secrets:
            return text
        return self.in_bytes(text.encode("utf-8", "surrogatepass")).decode("utf-8", "surrogatepass")


def _escaped_pattern(secret: str) -> str:
    """A pattern that matches a secret with any of its characters escaped in any way."""
    return "".join(_character_pattern(character) for character in secret)


def _character_pattern(character: str) -> str:
    encoded = character.encode()
    forms = [_literal(encoded), "".join(f"%{_any_case(f'{byte:02x}')}" for byte in encoded)]
    # A character outside of the basic plane is two \u escapes.
    units = character.encode("utf-16-be")
    forms.append(
        "".join(f"{_BACKSLASHES}[uU]{_any_case(units[i : i + 2].hex())}" for i in range(0, len(units), 2))
    )
    if character in _JSON_ESCAPES:
        forms.insert(0, _BACKSLASHES + _JSON_ESCAPES[character])
    if character == "\\":
        forms.insert(0, r"\\{2,16}")
    return f"(?:{'|'.join(forms)})"


def _literal(encoded: bytes) -> str:
    return "".join(f"\\x{byte:02x}" for byte in encoded)


def _any_case(digits: str) -> str:
    return "".join(f"[{d}{d.upper()}]" if d.isalpha() else d for d in digits)


def _base64_forms(secret: str) -> list[bytes]:
    """The part of its base64 that does not depend on what stands before and after it, at each of three offsets."""
    raw, forms = secret.encode(), []
    for offset in range(3):
        encoded = base64.b64encode(b"\0" * offset + raw)
        first = (0, 2, 3)[offset]
        last = len(encoded.rstrip(b"=")) - (1 if (offset + len(raw)) % 3 else 0)
        forms.append(encoded[first:last])
    return [form for each in forms for form in (each, each.translate(bytes.maketrans(b"+/", b"-_")))]


def _hex_forms(secret: str) -> list[bytes]:
    digits = secret.encode().hex().encode()
    return [digits, digits.upper()]
