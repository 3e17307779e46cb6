"""Text from outside as HTML: nothing becomes markup, nothing stays invisible."""

from __future__ import annotations

import sys
import unicodedata

from karat.formatting import escape_html, visible


def test_markup_is_escaped():
    assert escape_html("<img src=x onerror='a'>\"&") == "&lt;img src=x onerror=&#x27;a&#x27;&gt;&quot;&amp;"
    assert escape_html(None) == "None"


def test_no_control_or_format_character_stays_invisible():
    kept = {"\t", "\n"}
    for code in range(sys.maxunicode + 1):
        character = chr(code)
        if unicodedata.category(character) in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp") and character not in kept:
            shown = visible(f"a{character}b")
            # Signs that are written before numbers and syllables are visible by themselves.
            if (
                character
                in "\u0600\u0601\u0602\u0603\u0604\u0605\u06dd\u070f\u0890\u0891\u08e2\U000110bd\U000110cd"
            ):
                continue
            if 0x13430 <= code <= 0x1343F:  # arranges hieroglyphs
                continue
            assert character not in shown, hex(code)
            assert len(shown) > 2


def test_names_of_invisible_characters():
    assert visible("a\x1b[31m\x00\x7f") == "a␛[31m␀␡"
    assert visible("user\u202egpj.exe") == "user⟨U+202E⟩gpj.exe"
    assert visible("\U000e0041\ufeff") == "⟨U+E0041⟩⟨U+FEFF⟩"
    assert visible("\ud800") == "⟨U+D800⟩"
    assert visible("two\n\tlines, naïve, 日本語, שלום") == "two\n\tlines, naïve, 日本語, שלום"


def test_joiners_stay_where_writing_needs_them():
    family, persian = "👩\u200d👧", "می\u200cخواهم"
    assert visible(family) == family
    assert visible(persian) == persian
    assert visible("pass\u200dword") == "pass⟨U+200D⟩word"
    assert visible("\u200d\u200d") == "⟨U+200D⟩⟨U+200D⟩"
