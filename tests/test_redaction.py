"""A secret is removed in every form in which a program may repeat it, and nothing else is."""

from __future__ import annotations

import base64
import html
import json
import quopri
import re
import shlex
from random import Random
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from karat import redaction
from karat.redaction import MASK, Redactor

SECRETS = ["sk-canary-5f3a9b7c1d2e", 'p@w"or\\d/+=&?é😀 12', "a" * 40, "päßwörd-1234", "~~>?>~??>>~~<&'?>>"]


def forms(secret: str) -> dict[str, str]:
    raw = secret.encode()
    found = {
        "plain": secret,
        "json": json.dumps(secret),
        "json, unicode": json.dumps(secret, ensure_ascii=False),
        "json in json": json.dumps(json.dumps(secret)),
        "json in json in json": json.dumps(json.dumps(json.dumps(secret))),
        "slash escaped": json.dumps(secret).replace("/", "\\/"),
        "all \\u": "".join(f"\\u{int.from_bytes(c, 'big'):04x}" for c in units(secret)),
        "all \\u, upper case": "".join(f"\\u{int.from_bytes(c, 'big'):04X}" for c in units(secret)),
        "quote": quote(secret),
        "quote, all": quote(secret, safe=""),
        "every byte": "".join(f"%{b:02X}" for b in raw),
        "every byte, lower case": "".join(f"%{b:02x}" for b in raw),
        "hex": raw.hex(),
        "HEX": raw.hex().upper(),
    }
    found |= {
        "form": quote_plus(secret),
        "quoted twice": quote(quote(secret, safe=""), safe=""),
        "a form in a URL": quote(quote_plus(secret), safe=""),
        "html": html.escape(secret),
        "html, twice": html.escape(html.escape(secret)),
        "html, numbers": "".join(f"&#{ord(c)};" for c in secret),
        "html, hexadecimal numbers": "".join(f"&#x{ord(c):04X};" for c in secret),
        "bytes of Python": repr(raw)[2:-1],
        "bytes of Python in JSON": json.dumps(repr(raw)[2:-1]),
        "every byte as \\x": "".join(f"\\x{b:02x}" for b in raw),
    }
    octal = "".join(f"\\{b:03o}" for b in raw)
    found |= {
        "a regex": re.escape(secret),
        "a regex in JSON": json.dumps(re.escape(secret), ensure_ascii=False),
        "a shell": shlex.quote(secret),
        "SQL": secret.replace("'", "''"),
        "CSV": secret.replace('"', '""'),
        "octal": octal,
        "octal in JSON": json.dumps(octal),
        "hex with hyphens": raw.hex("-"),
        "a list of bytes": str(list(raw)),
        "a buffer in JSON": json.dumps(list(raw), separators=(",", ":")),
        "an array in C": ", ".join(f"0x{b:02x}" for b in raw),
        "UTF-8 read as Latin-1": raw.decode("latin-1"),
        "UTF-8 read as Latin-1, in JSON": json.dumps(raw.decode("latin-1")),
    }
    wide = secret.encode("utf-16-le")
    found |= {
        "repr": repr(secret)[1:-1],
        "ascii": ascii(secret)[1:-1],
        "repr with the other quote": repr("'\"" + secret)[4:-1],
        "\\U": "".join(f"\\U{ord(c):08x}" for c in secret),
        "\\u{}": "".join(f"\\u{{{ord(c):x}}}" for c in secret),
        "html, without semicolons": "".join(f"&#{ord(c)}" for c in secret),
        "hex with spaces": raw.hex(" "),
        "HEX with colons": raw.hex(":").upper(),
        "UTF-16 in hex": wide.hex(),
        "UTF-16 in base64": base64.b64encode(wide).decode(),
        "UTF-16 with a mark in base64": base64.b64encode(b"\xff\xfe" + wide).decode(),
    }
    if max(map(ord, secret)) < 0x100:
        found["UTF-16 read as Latin-1"] = "\0".join(secret)
        found["UTF-16 read as Latin-1, in JSON"] = json.dumps("\0".join(secret))[1:-1]
    for before in ("", "u:", "us:", "user:"):
        for after in ("", "x", "xy"):
            whole = (before + secret + after).encode()
            found[f"base64 {before}…{after}"] = base64.b64encode(whole).decode()
            found[f"url-safe base64 {before}…{after}"] = base64.urlsafe_b64encode(whole).decode()
            found[f"base64 in a URL {before}…{after}"] = quote(base64.b64encode(whole), safe="")
            found[f"base64 in JSON {before}…{after}"] = (
                base64.b64encode(whole).decode().replace("/", "\\/").replace("+", "\\u002B")
            )
    return found


def units(text: str) -> list[bytes]:
    encoded = text.encode("utf-16-be")
    return [encoded[i : i + 2] for i in range(0, len(encoded), 2)]


@pytest.mark.parametrize("secret", SECRETS)
def test_every_form_is_removed(secret):
    redactor = Redactor([secret])
    for name, form in forms(secret).items():
        out = redactor.in_text(f'{{"said": "the key is {form} or so"}}')
        assert MASK in out, name
        # At most the edges of a base64 text remain, which its neighbours share.
        assert len(out) < len(f'{{"said": "the key is {MASK} or so"}}') + 20, (name, out)


def test_a_form_is_removed_anywhere_in_a_large_text(monkeypatch):
    """A large text is searched piece by piece, so that other threads can run."""
    monkeypatch.setattr(redaction, "WINDOW", 1 << 10)
    secret = SECRETS[1]
    encoded = base64.b64encode(b"x" * 40 + secret.encode()).decode()
    broken = "\n".join(encoded[at : at + 20] for at in range(0, len(encoded), 20))
    redactor = Redactor([secret])
    for form in (json.dumps(json.dumps(secret)), quote(secret, safe=""), html.escape(secret), broken):
        for before in range(900, 1100, 3):
            out = redactor.in_text(f"{'- ' * before}{form}{' -' * before}")
            assert out.count(MASK) == 1
            assert out.startswith("- " * before)
            assert out.endswith(" -" * before)
            assert len(out) < 4 * before + len(MASK) + 80  # the base64 of what stands before it is left


@pytest.mark.parametrize("length", [8, 20, 54, 80, 300])
@pytest.mark.parametrize("width", [64, 76])
@pytest.mark.parametrize("before", range(0, 80, 7))
def test_base64_with_line_breaks_is_removed(length, width, before):
    random = Random(length + width + before)
    secret = "".join(random.choices("abcdefABCDEF0123456789+/-_", k=length))
    encoded = base64.b64encode(b"x" * before + secret.encode() + b" and more").decode()
    lines = [encoded[at : at + width] for at in range(0, len(encoded), width)]
    for line in ("\n", "\r\n", "\n  "):
        broken = line.join(lines)
        for text in (broken, json.dumps(broken), json.dumps(json.dumps(broken)), quote(broken, safe="+/")):
            out = Redactor([secret]).in_text(text)
            assert MASK in out
            # What is left, besides the base64 of what stands before and after it: at most its edges.
            assert len(out) < len(MASK) + before * 4 // 3 + 16 + 24 + 6 * len(lines)
            if text[:1] == '"':
                json.loads(out)


@given(secret=st.text(st.characters(exclude_categories=["Cs"]), min_size=8, max_size=40), data=st.data())
def test_any_mixture_of_escapes_is_removed(secret, data):
    ways = [
        lambda c: html.escape(c) if c != "\\" else "&#92;",
        lambda c: f"&#{ord(c)};",
        lambda c: "".join(f"\\x{byte:02X}" for byte in c.encode()),
        lambda c: quote(quote(c, safe=""), safe=""),
        lambda c: c if c not in '"\\' and ord(c) >= 32 else json.dumps(c)[1:-1],
        lambda c: quote(c, safe=""),
        lambda c: "".join(f"\\u{int.from_bytes(u, 'big'):04x}" for u in units(c)),
    ]
    written = "".join(data.draw(st.sampled_from(ways))(character) for character in secret)
    assert secret not in Redactor([secret]).in_text(f"<{written}>")
    assert MASK in Redactor([secret]).in_text(f"<{written}>")


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=200))
def test_json_stays_json_and_other_text_as_it_is(text):
    redactor = Redactor(["sk-canary-5f3a9b7c1d2e", 'quote"back\\slash'])
    document = json.dumps({"text": text, "key": 'quote"back\\slash'})
    assert json.loads(redactor.in_text(document)) == {"text": text, "key": MASK}


def test_a_short_value_is_not_a_secret():
    assert Redactor(["abc", ""]).in_text("abc") == "abc"
    assert not Redactor(["abc"])


def test_a_longer_secret_wins_over_one_inside_of_it():
    assert Redactor(["abcdefgh", "abcdefghijkl"]).in_text("abcdefghijkl") == MASK


@pytest.mark.parametrize("secret", ["a", "ab", "abc", "pw1"])
def test_pieces_of_a_short_password_do_not_spoil_a_message(secret):
    redactor = Redactor([secret], shortest=1)
    assert redactor.in_text("FATAL: YES, FiY hYm cH B3 wd") == "FATAL: YES, FiY hYm cH B3 wd"
    assert redactor.in_text(f"<{secret}>") == f"<{MASK}>"


def test_a_secret_that_is_not_valid_text_is_removed():
    assert Redactor(["sk-canary\udcff"]).in_text("key sk-canary\udcff!") == f"key {MASK}!"


@pytest.mark.parametrize(
    "secret", ["sk-proj-0123456789abcdefghijklmnopqrstuvwxyz", "pass=word+with/signs", "geheim-ö-key-ü"]
)
@pytest.mark.parametrize("end", ["\n", "\r\n", "\n    ", "=\n", "\\\n", "\\n"])
def test_a_key_that_is_broken_into_lines_is_removed(secret, end):
    redactor = Redactor([secret])
    for at in range(1, len(secret)):
        text = f"the key is {secret[:at]}{end}{secret[at:]} and more"
        assert redactor.in_text(text) == "the key is [secret] and more"
    thrice = end.join(secret[at : at + 9] for at in range(0, len(secret), 9))
    assert secret[-8:] not in redactor.in_text(f"{thrice}.")


@pytest.mark.parametrize("secret", ["sk-proj-0123456789", "a-key-of-some-length", "12345678"])
@pytest.mark.parametrize("before", range(6))
def test_base32_is_removed_at_any_offset(secret, before):
    encoded = base64.b32encode(b"x" * before + secret.encode() + b"yz").decode()
    assert "[secret]" in Redactor([secret]).in_text(encoded)


def test_quoted_printable_is_removed():
    secret = "key=with=signs-and-ö"
    encoded = quopri.encodestring(b"some words before it " * 3 + secret.encode()).decode()
    assert "=3D" in encoded
    assert Redactor([secret]).in_text(encoded).replace("=\n", "").endswith("before it [secret]")


def test_a_key_of_spaces_and_backslashes_takes_no_long_search():
    secret = "a" + " \\" * 20 + "b"
    text = "a" + "\n \\n \\\\ " * 2_000 + "b"
    assert Redactor([secret]).in_text(text) == text
