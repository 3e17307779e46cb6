"""A prompt as a task: a template filled from the example's input and answered by a model."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from karat.errors import RequestError, did_you_mean
from karat.paths import MISSING, find
from karat.records import Example
from karat.tasks.function import Context, Task

if TYPE_CHECKING:
    from karat.models import Model, OutputSchema

_FIELD = r"[^\W\d]\w*(?:\.\w+)*"
_VARIABLE = re.compile(r"\{\{(" + _FIELD + r")\}\}|\{(" + _FIELD + r")\}")
"""`{name}` or `{name.field}`; doubled braces are literal braces, and so is any other brace."""


class PromptTask(Task):
    """A prompt for a model. `{question}` in the prompt is that field of the input, `{input}` the whole input.

    `prompt` is a text, or a list of `{role, content}`. With a `schema` (JSON Schema or a pydantic model) the
    output is what the model's answer parses to, otherwise its text.
    """

    is_async = True
    names_models = True

    def __init__(
        self,
        prompt: str | Sequence[Mapping[str, Any]],
        *,
        model: str | Model | None = None,
        system: str | None = None,
        temperature: float | None = None,
        max_tokens: int | None = None,
        seed: int | None = None,
        stop: str | Sequence[str] | None = None,
        schema: type | Mapping[str, Any] | OutputSchema | None = None,
        effort: str | None = None,
        api: Literal["chat", "responses", "anthropic"] | None = None,
        deterministic: bool | None = None,
        stream: bool | None = None,
        logprobs: bool | int | None = None,
        name: str = "prompt",
    ) -> None:
        from karat import models
        from karat.models._messages import read_messages

        self.name = name
        self.messages = read_messages(prompt, files=False)
        if system is not None:
            self.messages.insert(0, {"role": "system", "content": system})
        if not self.variables():
            raise RequestError(
                f"task {name!r}: the prompt has no {{variable}}, so every example would send the same request:"
                " write {input} or a field of it"
            )
        self._fills = [message_template(message) for message in self.messages]
        self.model = models.get(model, api=api)
        self._schema = schema
        if schema is not None:
            from karat.models._structured import output_schema

            output_schema(schema)  # report a wrong schema before the first record
        given: dict[str, Any] = {
            "temperature": temperature,
            "max_tokens": max_tokens,
            "seed": seed,
            "stop": stop,
            "effort": effort,
            "deterministic": deterministic,
            "stream": stream,
            "logprobs": logprobs,
        }
        self._parameters = {key: value for key, value in given.items() if value is not None}
        self.model.check_options(self._parameters)  # report refused options before the first record

    def variables(self) -> list[str]:
        """The variables the prompt asks for, each once, in their order."""
        found: dict[str, None] = {}
        for text in _texts(self.messages):
            found.update(dict.fromkeys(m.group(2) for m in _VARIABLE.finditer(text) if m.group(2)))
        return list(found)

    def check_inputs(self, examples: Iterable[Example]) -> list[str]:
        variables = self.variables()
        first: Sequence[str] = ()
        for example in examples:
            values = (_value(name, example.input) for name in variables)
            lacking = [value for value in values if isinstance(value, _Unknown)]
            if not lacking:
                return []
            first = first or lacking
        return [*first]

    def _fill(self, given: object) -> list[dict[str, Any]]:
        """The messages for an input."""
        return [fill(given) for fill in self._fills]

    @property
    def answer_tokens(self) -> int | None:
        """The longest answer, by the prompt's own limit or the model's; None if it is unknown."""
        return self.model.answer_tokens(
            self._parameters.get("max_tokens"), structured=self._schema is not None
        )

    def prompt_size(self, given: object) -> tuple[int, int]:
        """Bytes of the texts for an input, with the schema that goes with them; and its images, audio and files."""
        size = 0 if self._schema is None else len(msgspec.json.encode(self.configuration()["schema"]))
        media = 0
        for message in self._fill(given):
            content = message.get("content")
            if isinstance(content, list):
                texts = [
                    part["text"] if isinstance(part, Mapping) else part
                    for part in content
                    if not isinstance(part, Mapping) or part.get("type") == "text"
                ]
                media += len(content) - len(texts)
                message = {**message, "content": texts}
            size += sum(len(text.encode()) for text in _texts(message))
        return size, media

    async def call_async(self, example: Example, context: Context) -> Any:
        reply = await self.model.generate(self._fill(example.input), schema=self._schema, **self._parameters)
        return reply.text if self._schema is None else reply.parsed

    def configuration(self) -> Any:
        endpoint = self.model.endpoint
        out = {
            "task": self.name,
            "messages": self.messages,
            "model": self.model.spec,
            "base_url": endpoint.base_url,
            "endpoint": self.model.identity(),
            **self._parameters,
        }
        if self._schema is not None:
            from karat.models._structured import output_schema

            out["schema"] = output_schema(self._schema).schema
        return out

    def code(self) -> str | None:
        return "prompt"


class _Unknown(str):
    """The sentence about a variable that an input does not have."""


def _texts(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, Mapping):
        return [text for item in value.values() for text in _texts(item)]
    if isinstance(value, (list, tuple)):
        return [text for item in value for text in _texts(item)]
    return []


def template(value: object) -> Callable[[Any], Any]:
    """Return a function that fills a text, or the texts in messages, from an input.

    Read once here and not for every record. Variables are replaced once: what an input contains is never taken
    for a variable.
    """
    if isinstance(value, str):
        return _text_template(value)
    if isinstance(value, Mapping):
        fields = [(key, template(item)) for key, item in value.items()]
        return lambda given: {key: fill(given) for key, fill in fields}
    if isinstance(value, (list, tuple)):
        items = [template(item) for item in value]
        return lambda given: [fill(given) for fill in items]
    return lambda given: value


def message_template(message: Mapping[str, Any]) -> Callable[[Any], dict[str, Any]]:
    """As `template`, for a message, in whose content a variable may stand for an image, a sound or a file."""
    fields = [
        (key, _content_template(item) if key == "content" else template(item))
        for key, item in message.items()
    ]
    return lambda given: {key: fill(given) for key, fill in fields}


def _content_template(value: object) -> Callable[[Any], Any]:
    if isinstance(value, (list, tuple)):
        items = [_content_template(item) if isinstance(item, str) else template(item) for item in value]

        def filled(given: object) -> list[Any]:
            out: list[Any] = []
            for fill in items:
                part = fill(given)
                out += part if isinstance(part, list) else [part]
            return out

        return filled
    if not isinstance(value, str):
        return template(value)
    from karat.models import message_content

    pieces = _pieces(value)
    if not any(isinstance(piece, tuple) for piece in pieces):
        return template(value)

    def fill(given: object) -> Any:
        filled: list[Any] = []
        text = True
        for piece in pieces:
            if piece.__class__ is not str:
                found = _value(piece[0], given)
                if isinstance(found, _Unknown):
                    raise RequestError(found)
                if found.__class__ is str:
                    piece = found
                else:
                    piece, text = (found,), False
            filled.append(piece)
        return "".join(filled) if text else message_content(filled)

    return fill


def _pieces(text: str) -> list[str | tuple[str]]:
    """The literals of a template, and the names of its variables."""
    out: list[str | tuple[str]] = []
    end = 0
    for match in _VARIABLE.finditer(text):
        out.append(text[end : match.start()] + (f"{{{match.group(1)}}}" if match.group(1) else ""))
        out += [(match.group(2),)] if match.group(2) else []
        end = match.end()
    return [piece for piece in [*out, text[end:]] if piece]


def _text_template(text: str) -> Callable[[Any], str]:
    parts: list[Callable[[Any], str] | str] = []
    end = 0
    for match in _VARIABLE.finditer(text):
        literal = text[end : match.start()] + (f"{{{match.group(1)}}}" if match.group(1) else "")
        parts += [literal] if literal else []
        parts += [_variable(match.group(2))] if match.group(2) else []
        end = match.end()
    parts += [text[end:]] if text[end:] else []
    if all(isinstance(part, str) for part in parts):
        constant = "".join(map(str, parts))
        return lambda given: constant
    if len(parts) == 1 and callable(parts[0]):
        return parts[0]
    return lambda given: "".join([part if isinstance(part, str) else part(given) for part in parts])


def _variable(name: str) -> Callable[[Any], str]:
    def fill(given: object) -> str:
        value = _value(name, given)
        if value.__class__ is str:
            return value
        if isinstance(value, _Unknown):
            raise RequestError(value)
        return value if isinstance(value, str) else msgspec.json.encode(value).decode()

    return fill


def _value(name: str, given: Any) -> Any:
    """The value of a variable: a field of the input (also inside of it), or for `input` the whole."""
    if name == "input" and not isinstance(given, Mapping):
        return given
    found = find(given, name)
    if found is MISSING and name.partition(".")[0] == "input":
        found = find({"input": given}, name)
    if found is not MISSING:
        return found
    known = ["input", *(str(key) for key in given)] if isinstance(given, Mapping) else ["input"]
    return _Unknown(
        f"the prompt asks for {{{name}}} and the input has no such field: {did_you_mean(name, known)}"
        f" ({{{{{name}}}}} for the braces themselves)"
    )
