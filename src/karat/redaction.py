"""Removal of secrets from text that is stored or printed, in every form in which a program may repeat them.

A server that quotes a key quotes it as JSON, as a URL or as base64. One `Redactor` knows all of these forms of its
secrets; models use it for replies, traces and messages, stores for addresses and driver errors.
"""

from __future__ import annotations

import base64
import functools
import itertools
import os
import re
from collections.abc import Iterable, Mapping
from typing import Any

MASK = "[secret]"

SHORTEST = 8
"""Characters. A shorter value is a placeholder, and removing it would spoil ordinary text."""

_BACKSLASHES = r"\\\\{0,7}"
"""Text inside of JSON inside of JSON has its backslashes doubled each time. Bounded: a run of them is read once."""

_BACKSLASH_ESCAPES = {
    '"': '"',
    "'": "'",
    "\\": r"\\",
    "/": "/",
    "\b": "b",
    "\f": "f",
    "\n": "n",
    "\r": "r",
    "\t": "t",
}
"""Those of JSON, and the quote that Python escapes in a repr."""

_HTML_ENTITIES = {"&": "amp", "<": "lt", ">": "gt", '"': "quot", "'": "apos"}

SHORTEST_ENCODED = 6
"""Characters. A shorter piece of base64 or hex, of a password of three letters, occurs in ordinary text."""

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
    """Replace secrets by `[secret]`: as they are, in base64 and base32, as numbers, and with any character escaped.

    Numbers are the bytes in hex, octal and decimal, also as lists. Escapes are those of JSON, `\\u`, `\\U` and `\\x`,
    percent-encoding (also twice), forms (+ for a space), quoted-printable and HTML. UTF-16 is recognised in base64, in
    hex, and as text with a NUL beside each character. Text, quoted-printable and base64 may be broken into lines.
    """

    def __init__(self, secrets: Iterable[str], *, shortest: int = SHORTEST) -> None:
        self.secrets = tuple(sorted({s for s in secrets if len(s) >= shortest}, key=len, reverse=True))
        literals: list[bytes] = []
        escapable: list[str] = []
        wide: list[str] = []
        breakable: list[bytes] = []
        for secret in self.secrets:
            encoded = [
                each
                for each in (*_base64_forms(secret), *_base32_forms(secret), *_hex_forms(secret))
                if len(each) >= SHORTEST_ENCODED
            ]
            literals += [_bytes(secret), *encoded, *_quoted_forms(secret)]
            literals += [each for each in _number_forms(secret) if len(each) >= SHORTEST_ENCODED]
            breakable += _base64_forms(secret)
            if not _LIKE_A_BREAK.search(secret):
                breakable += [_bytes(secret), _quoted_printable(secret)]
            if all(ord(c) < 0x100 for c in secret):
                wide.append("\0".join(secret))
            # The + and / of base64 are escaped in URLs and by some JSON writers; the rest of it is not.
            escapable += [secret, *(each.decode() for each in encoded if b"+" in each or b"/" in each)]
            if not secret.isascii():  # UTF-8 is often read as Latin-1, such as the values of HTTP headers
                escapable.append(_bytes(secret).decode("latin-1"))
                literals.append(_bytes(escapable[-1]))
        self._literals = tuple(dict.fromkeys([*literals, *map(_bytes, wide)]))
        # Only these characters are escaped by ordinary writers; the rest appears in the forms of _ANY_CHARACTER alone.
        used = set("".join(escapable))
        signs = {
            b"\\": any(c in _BACKSLASH_ESCAPES or ord(c) < 0x20 for c in used),
            b"&": any(c in _HTML_ENTITIES for c in used),
            b"+": " " in used,
            b"=": "=" in used or any(ord(c) > 0x7F for c in used),
        }
        self._signs = (*_ANY_CHARACTER, *(sign for sign, counts in signs.items() if counts))
        self._escaped = _escaped_pattern(escapable) if self.secrets else None
        self._breakable = [form for form in dict.fromkeys(breakable) if len(form) >= SHORTEST_ENCODED]
        # One of two neighbouring pieces of a form is whole: lines of base64 are longer than both together.
        halves = [(form, min(_PIECE, len(form) // 2)) for form in self._breakable]
        self._pieces = tuple(
            dict.fromkeys(piece for form, half in halves for piece in (form[:half], form[half : 2 * half]))
        )
        self._wide = _escaped_pattern(wide) if wide else None
        self._longest = max(map(len, [*escapable, *wide, *self._breakable]), default=0)

    def __bool__(self) -> bool:
        return bool(self.secrets)

    def in_bytes(self, data: bytes) -> bytes:
        """The UTF-8 text without the secrets; JSON stays JSON."""
        # The common case costs a few searches for a literal: this is done for every reply.
        for literal in self._literals:
            if literal in data:
                data = data.replace(literal, MASK.encode())
        if self._escaped is not None and any(sign in data for sign in self._signs):
            data = _mask(self._escaped, data, self._longest * LONGEST_ESCAPE)
            if self._wide is not None and any(sign in data for sign in _ESCAPED_NULS):
                data = _mask(self._wide, data, self._longest * LONGEST_ESCAPE)
        if any(sign in data for sign in _BREAKS) and any(piece in data for piece in self._pieces):
            data = _mask(self._broken, data, self._longest * LONGEST_BREAK)
        return data

    @functools.cached_property
    def _broken(self) -> re.Pattern[bytes]:
        """Forms with line breaks in them, as MIME and the `base64` program write them; made only where it is needed."""
        forms = ["".join(f"\\x{byte:02x}{_BREAK}" for byte in each) for each in self._breakable]
        return re.compile("|".join(each.removesuffix(_BREAK) for each in forms).encode())

    def in_text(self, text: str) -> str:
        """The text without the secrets."""
        return self.in_bytes(_bytes(text)).decode("utf-8", "surrogatepass") if self.secrets else text


_SECRET_VARIABLE = re.compile(
    r"(?:API_?KEY|ACCESS_?KEY|SECRET|SECRET_?KEY|TOKEN|PASSWORD|PASSWD)$", re.IGNORECASE
)


def of_environment() -> Redactor:
    """A redactor of the environment variables that hold a secret by their name, as they are now."""
    return _redactor(tuple(value for name, value in os.environ.items() if _SECRET_VARIABLE.search(name)))


@functools.lru_cache(8)
def _redactor(secrets: tuple[str, ...]) -> Redactor:
    return Redactor(secrets)


WINDOW = 1 << 16
"""Bytes that are searched at a time: `re` blocks other threads, and may take 50 ms for so many."""
LONGEST_ESCAPE = 48
LONGEST_BREAK = 350
"""Bytes of a character in an escaped form, and of one with line breaks behind it."""


def _mask(pattern: re.Pattern[bytes], data: bytes, longest: int) -> bytes:
    """The data with a mask in place of the matches, none of which is longer than `longest`."""
    if len(data) <= WINDOW:
        return pattern.sub(MASK.encode(), data)
    parts: list[bytes] = []
    copied = at = 0
    while at < len(data):
        found = pattern.search(data, at, at + WINDOW + longest)
        if found is None or found.start() >= at + WINDOW:
            at += WINDOW
            continue
        parts += (data[copied : found.start()], MASK.encode())
        copied = at = found.end()
    return b"".join((*parts, data[copied:]))


_BREAKS = (b"\n", b"\r", b"\\n", b"\\r", b"%0", b"&#1")
_BREAK = r"(?:(?:[=\\]?[\r\n]|\\{1,8}[rn]|%0[AaDd]|&#1[03];)(?:[ \t]|\\{1,8}t|%20|%09){0,8}){0,4}"
"""What may stand between two characters: line breaks, also escaped or continued, and the indentation after them."""
_LIKE_A_BREAK = re.compile(r"[\s\\%&]")
"""Characters of a secret that could also belong to a break: to try both takes exponential time."""
_PIECE = 8

_ANY_CHARACTER = (b"%", b"\\u", b"\\U", b"\\x", b"&#")
"""How escapes begin that can stand for any character."""
_ESCAPED_NULS = (b"u0000", b"U0000", b"x00", b"%00", b"&#0", b"u{0")


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _escaped_pattern(secrets: Iterable[str]) -> re.Pattern[bytes]:
    """A pattern that matches secrets with any of their characters escaped in any way."""
    patterns = ["".join(map(_character_pattern, secret)) for secret in dict.fromkeys(secrets)]
    return re.compile("|".join(patterns).encode())


def _character_pattern(character: str) -> str:
    encoded, code = _bytes(character), ord(character)
    # Each form begins with a literal character: `re` then rules it out without trying it.
    forms = [_literal(encoded), _percent(encoded)]
    # A character outside of the basic plane is two \u escapes.
    units = character.encode("utf-16-be", "surrogatepass")
    escapes = [
        f"{_BACKSLASHES}".join(f"[uU]{_any_case(units[i : i + 2].hex())}" for i in range(0, len(units), 2)),
        f"{_BACKSLASHES}".join(f"x{_any_case(f'{byte:02x}')}" for byte in encoded),
        f"U{_any_case(f'{code:08x}')}",
        f"u\\{{0{{0,5}}{_any_case(f'{code:x}')}\\}}",
    ]
    escapes += [f"x{_any_case(f'{code:02x}')}"] if 0x80 <= code < 0x100 else []  # the ascii() of Latin-1
    escapes += [_BACKSLASH_ESCAPES[character]] if character in _BACKSLASH_ESCAPES else []
    forms.append(f"{_BACKSLASHES}(?:{'|'.join(escapes)})")
    names = [f"#0{{0,6}}{code}", f"#[xX]0{{0,6}}{_any_case(f'{code:x}')}"]
    names += [_HTML_ENTITIES[character]] if character in _HTML_ENTITIES else []
    forms.append(f"&(?:amp;){{0,3}}(?:{'|'.join(names)});?")
    if character == "=" or code > 0x7F:
        forms.append("".join(f"={_any_case(f'{byte:02x}')}" for byte in encoded))
    if character == " ":
        forms += [_literal(b"+"), _percent(b"+")]
    if character == "\\":
        forms.insert(0, r"\\\\{1,15}")
    return f"(?:{'|'.join(forms)})"


def _percent(encoded: bytes) -> str:
    return "".join(f"%(?:25){{0,3}}{_any_case(f'{byte:02x}')}" for byte in encoded)


def _literal(encoded: bytes) -> str:
    return "".join(f"\\x{byte:02x}" for byte in encoded)


def _any_case(digits: str) -> str:
    return "".join(f"[{d}{d.upper()}]" if d.isalpha() else d for d in digits)


def _base64_forms(secret: str) -> list[bytes]:
    """The part of its base64 that does not depend on what stands before and after it, at each of three offsets."""
    forms = []
    for raw, offset in itertools.product(_encodings(secret), range(3)):
        encoded = base64.b64encode(b"\0" * offset + raw)
        first = (0, 2, 3)[offset]
        last = len(encoded.rstrip(b"=")) - (1 if (offset + len(raw)) % 3 else 0)
        forms.append(encoded[first:last])
    return [form for each in forms for form in (each, each.translate(bytes.maketrans(b"+/", b"-_")))]


def _base32_forms(secret: str) -> list[bytes]:
    """The same for base32, at each of five offsets."""
    forms = []
    raw = _bytes(secret)
    for offset in range(5):
        encoded = base64.b32encode(b"\0" * offset + raw)
        first = -(-8 * offset // 5)
        last = (offset + len(raw)) * 8 // 5
        forms.append(encoded[first:last])
    return forms


def _quoted_printable(secret: str) -> bytes:
    plain = (
        each.to_bytes() if 0x20 <= each < 0x7F and each != 0x3D else b"=%02X" % each
        for each in _bytes(secret)
    )
    return b"".join(plain)


def _hex_forms(secret: str) -> list[bytes]:
    digits = [raw.hex().encode() for raw in _encodings(secret)]
    digits += [_bytes(secret).hex(separator).encode() for separator in " :-"]
    return [*digits, *(each.upper() for each in digits)]


def _quoted_forms(secret: str) -> list[bytes]:
    """A secret as regexes, shells, SQL and CSV quote it."""
    escaped = re.sub(r"[^\w]", r"\\\g<0>", secret, flags=re.ASCII)
    forms = [escaped, re.escape(secret), secret.replace("'", "''"), secret.replace('"', '""')]
    forms += [secret.replace("'", end) for end in ("'\"'\"'", r"'\''")]
    forms += [each.replace("\\", "\\\\").replace('"', '\\"') for each in forms]
    return [_bytes(each) for each in dict.fromkeys(forms) if each != secret]


def _number_forms(secret: str) -> list[bytes]:
    """The numbers of its bytes, as lists and as octal escapes."""
    raw = _bytes(secret)
    octal = [f"\\{byte:03o}" for byte in raw]
    mixed = [chr(byte) if byte < 0x80 else escape for byte, escape in zip(raw, octal, strict=True)]
    forms = [separator.join(map(str, raw)) for separator in (",", ", ")]
    forms += [separator.join(f"0x{byte:02x}" for byte in raw) for separator in (",", ", ")]
    forms += ["".join(each) for each in (octal, mixed)]
    return [_bytes(each) for each in (*forms, *(each.replace("\\", "\\\\") for each in forms[-2:]))]


def _encodings(secret: str) -> tuple[bytes, bytes]:
    """UTF-8, and UTF-16 as Windows writes it; the other byte order has the same characters between its NULs."""
    return _bytes(secret), secret.encode("utf-16-le", "surrogatepass")
