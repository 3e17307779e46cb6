"""A model on loopback that extracts memories by rule: each turn it is shown becomes one memory."""

from __future__ import annotations

import json
import re

from karat.testing import FakeProvider

LINE = re.compile(
    r"^(?:user|assistant|human|ai): (.*?)(?=^(?:user|assistant): |\Z)", re.MULTILINE | re.DOTALL
)


def extracting(port: int = 0):
    """A provider that answers mem0's and langmem's prompts."""
    return FakeProvider(answer, strict=False, port=port)


def answer(body):
    prompt = body["messages"][-1]["content"]
    if "## New Messages" in prompt:
        return mem0_reply(prompt)
    return langmem_reply(prompt)


def mem0_reply(prompt):
    new = prompt.partition("## New Messages\n")[2].partition("\n\n## Observation Date")[0]
    texts = [text.strip() for text in LINE.findall(new)]
    memories = [{"id": str(n), "text": text, "attributed_to": "user"} for n, text in enumerate(texts) if text]
    return json.dumps({"memory": memories})


def langmem_reply(prompt):
    session = re.search(r"<session_[^>]*>\n(.*)\n</session_", prompt, re.DOTALL)
    said = re.sub(r"^=+ .* Message =+$", "", session[1] if session else "", flags=re.MULTILINE)
    texts = [
        text.strip() for text in re.split(r"^(?=\[\d{4}[^\]]*\] )", said, flags=re.MULTILINE) if text.strip()
    ]
    calls = [{"name": "Memory", "arguments": {"content": text}} for text in texts]
    return {"text": "", "tool_calls": calls} if calls else {"text": "nothing new"}
