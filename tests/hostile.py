"""Strings that try to become markup, code, commands or another reading order."""

from __future__ import annotations

HOSTILE = [
    "<script>window.hacked=1</script>",
    "</style><script>window.hacked=1</script>",
    "</title></svg><img src=x onerror=window.hacked=1>",
    "<svg onload=window.hacked=1>",
    "\"><img src=x onerror='window.hacked=1'>",
    "' autofocus onfocus=window.hacked=1 x='",
    "javascript:window.hacked=1",
    "[link](javascript:window.hacked=1) ![x](http://example.org/x.png)",
    "&lt;b&gt; &amp; &#x3c;i&#x3e; &quot;",
    "{{7*7}} ${7*7} <%= 7*7 %>",
    "]]><!--",
    "--><img src=x onerror=window.hacked=1>",
    "user\u202egpj.exe\u2066\u2069",
    "zero\u200bwidth\u200d\ufeff\u00adand\u2060joined",
    "tags \U000e0041\U000e0042\U000e007f",
    "\x1b[31mred\x1b]0;title\x07 \x00\x01\x7f\x9b",
    "line\u2028separator\u2029paragraph\x85next",
    "Z͑ͫ̓ͪ̂ͫ̽͏̴̙̤̞͉͚̯̞̠͍A̴̵̜̰͔ͫ͗͢L̠ͨͧͩ͘G̴̻͈͍͔̹̑͗̎̅͛́Ǫ̵̹̻̝̳͂̌̌͘!͖̬̰̙̗̿̋ͥͥ̂ͣ̐́́͜͞",
    "שלום <b>עולם</b> مرحبا",
    "=cmd|'/c calc'!A0",
    "%s%n %00 ../../etc/passwd",
    "a" * 5000,
    "",
    " ",
    "\n\n\t",
]
