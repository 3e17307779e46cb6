"""The nodes that call models: `llm`, `multi_llm` and `agent`, and the model settings that they share."""

from __future__ import annotations

import asyncio
import difflib
import inspect
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from karat.errors import KaratError, RequestError, did_you_mean
from karat.graph._functions import Applied
from karat.graph._reading import Section
from karat.graph._schemas import read_structured_output
from karat.graph._state import (
    CHAT_HISTORY,
    MESSAGES,
    Message,
    SygraMessage,
    SygraState,
    as_message,
    mutable_copy,
)
from karat.graph.nodes._base import COMMON, MODEL_KEYS, Building, Node, Record, output_keys_of
from karat.graph.nodes._tools import Tool, read_tools
from karat.models import ROLES, OutputSchema, Reply, annotate, check_extra, message_content
from karat.paths import MISSING, find
from karat.serialization import to_json_value

# Prompts: lists of roles with `{variables}`, compiled once and filled for every record.
#
# `{name}`, `{name.field[0]}` and `{alias->column}` are variables; doubled (`{{name}}`) they stand for themselves, and
# any other brace is a brace. A text in which other braces are doubled too, as SyGra's templates need it, is read as
# such a template: each pair stands for one. What a record holds is never taken for a variable.

_NAME = r"[^\W\d]\w*(?:(?:\.|->)\w+|\[\d+\])*"
_VARIABLE = re.compile(r"\{\{(" + _NAME + r")\}\}|\{(" + _NAME + r")\}")

Fill = Callable[[Mapping[str, Any]], Any]


class Prompt:
    """The messages of a node."""

    def __init__(self, messages: list[tuple[str, Any]]) -> None:
        self.messages = messages
        self.variables: dict[str, None] = {}
        self._fills = [(role, self._compile(content)) for role, content in messages]

    def fill(self, state: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The messages for a record."""
        return [{"role": role, "content": fill(state)} for role, fill in self._fills]

    def _compile(self, content: Any) -> Fill:
        if isinstance(content, str):
            return self._text(content, media=True)
        if isinstance(content, list):
            parts = [self._part(part) for part in content]

            def filled(state: Mapping[str, Any]) -> list[Any]:
                out: list[Any] = []
                for fill in parts:
                    part = fill(state)
                    out += part if isinstance(part, list) else [part]
                return out

            return filled
        return lambda state: content

    def _part(self, part: Any) -> Fill:
        """A part of a message: text, image or audio, in the shape that models are asked with."""
        if not isinstance(part, Mapping):
            text = self._text(str(part), media=True)

            def parts(state: Mapping[str, Any]) -> Any:
                found = text(state)
                return found if isinstance(found, list) else {"type": "text", "text": found}

            return parts
        kind = part.get("type")
        if kind in ("image_url", "audio_url"):
            given = part.get(kind)
            fill = self._urls(str(given.get("url", "") if isinstance(given, Mapping) else given))
            more = {k: v for k, v in given.items() if k != "url"} if isinstance(given, Mapping) else {}
            shape = _image if kind == "image_url" else _audio
            return lambda state: [shape(url, more) for url in fill(state)]
        fills = {
            key: self._text(value) if isinstance(value, str) else self._compile(value)
            for key, value in part.items()
        }
        return lambda state: {key: fill(state) for key, fill in fills.items()}

    def _urls(self, template: str) -> Fill:
        """One URL, or those of a variable that holds a list of them."""
        text, variable = self._text(template), _VARIABLE.fullmatch(template)

        def urls(state: Mapping[str, Any]) -> list[str]:
            value = value_of(variable[2], state) if variable and variable[2] else None
            return [*map(_as_text, value)] if isinstance(value, list) else [text(state)]

        return urls

    def _text(self, template: str, media: bool = False) -> Fill:
        """A text; with `media`, a variable may stand for an image, a sound or a file, which gives parts."""
        pieces: list[str | list[str]] = []
        at = 0
        for match in _VARIABLE.finditer(template):
            pieces.append(template[at : match.start()])
            if match[1]:
                pieces.append("{" + match[1] + "}")
            else:
                self.variables[match[2]] = None
                pieces.append([match[2]])
            at = match.end()
        pieces.append(template[at:])
        if any("{{" in piece for piece in pieces if isinstance(piece, str)):
            pieces = [_unescape(piece) if isinstance(piece, str) else piece for piece in pieces]
        if all(isinstance(piece, str) for piece in pieces):
            whole = "".join(piece for piece in pieces if isinstance(piece, str))
            return lambda state: whole
        if media:
            return lambda state: message_content(
                [piece if isinstance(piece, str) else (value_of(piece[0], state),) for piece in pieces]
            )
        return lambda state: "".join(
            piece if isinstance(piece, str) else _as_text(value_of(piece[0], state)) for piece in pieces
        )


def _unescape(text: str) -> str:
    return text.replace("{{", "{").replace("}}", "}")


def value_of(name: str, state: Mapping[str, Any]) -> Any:
    """The value of a variable: a name of the state, or a path into it."""
    value = find(state, name)
    if value is MISSING:
        raise RequestError(
            f"the prompt asks for {{{name}}} and the record has no such field: {did_you_mean(name, map(str, state))}"
        )
    return value


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _image(url: str, more: Mapping[str, Any]) -> dict[str, Any]:
    _check_url(url, "image")
    return {"type": "image_url", "image_url": {"url": url, **more}}


def _audio(url: str, more: Mapping[str, Any]) -> dict[str, Any]:
    _check_url(url, "audio")
    head, comma, data = url.partition(",")
    if not comma or not head.startswith("data:audio/"):
        return {"type": "audio_url", "audio_url": {"url": url, **more}}
    form = head.removeprefix("data:audio/").partition(";")[0]
    return {"type": "input_audio", "input_audio": {"data": data, "format": {"mpeg": "mp3"}.get(form, form)}}


def _check_url(url: str, kind: str) -> None:
    if not url.startswith(("data:", "https://", "http://")):
        raise RequestError(f"{kind} {url[:60]!r} is not a URL: give https://… or data:{kind}/…;base64,…")


def read_prompt(node: Section) -> Prompt:
    """The prompt of a node's section. Invalid messages are reported and left out."""
    messages: list[tuple[str, Any]] = []
    entries = node.items("prompt")
    if not entries:
        node.problem('needs a prompt: a list such as - user: "{question}"')
    for at, entry in enumerate(entries):
        if not isinstance(entry, Mapping) or not entry:
            node.problem("must be a role with its content, such as user: …", "prompt", at)
            continue
        if set(entry) == {"role", "content"}:
            entry = {str(entry["role"]): entry["content"]}
        for role, content in entry.items():
            if role not in ROLES:
                node.problem(f"unknown role: {did_you_mean(str(role), ROLES)}", "prompt", at, str(role))
            elif isinstance(content, list):
                _check_parts(node, content, at, str(role))
                messages.append((str(role), content))
            elif content is None or isinstance(content, Mapping):
                node.problem("must be text or a list of parts", "prompt", at, str(role))
            else:
                messages.append((str(role), content if isinstance(content, str) else str(content)))
    return Prompt(messages)


def _check_parts(node: Section, parts: Iterable[Any], at: int, role: str) -> None:
    kinds = ("text", "image_url", "audio_url", "input_audio", "file", "image", "audio")
    for number, part in enumerate(parts):
        kind = part.get("type") if isinstance(part, Mapping) else None
        if isinstance(part, str):
            continue
        if kind not in kinds:
            node.problem(f"a part needs a type: {did_you_mean(str(kind), kinds)}", "prompt", at, role, number)
        elif kind not in part and not (kind in ("image", "audio", "file") and "path" in part):
            needed = "path" if kind in ("image", "audio") else kind
            node.problem(f"a part of the type {kind} needs {needed!r}", "prompt", at, role, number)
        elif kind == "text" and not isinstance(part["text"], str):
            node.problem("must be text", "prompt", at, role, number, "text")


OWN = (
    "temperature", "max_tokens", "seed", "stop", "n", "tool_choice", "effort", "logprobs", "stream", "deterministic",
)  # fmt: skip
ELSEWHERE = ("output_type", "input_type", "provider", "model_type", "backend")
"""Keys of SyGra that say what a model is; karat's models have that in their name or in models.yaml."""
OTHERS = (
    "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty",
    "reasoning_effort", "response_format",
)  # fmt: skip


class ModelUse:
    """A model as one node uses it."""

    def __init__(self, model: Any, parameters: Mapping[str, Any], schema: Any) -> None:
        self.model = model
        self.schema = schema
        self.parameters = {key: value for key, value in parameters.items() if key in OWN}
        extra = {key: value for key, value in parameters.items() if key not in OWN}
        if extra:
            self.parameters["extra"] = check_extra(extra)
        if model is not None:
            model.check_options(self.parameters)  # before the first record

    async def ask(self, messages: list[dict[str, Any]], **more: Any) -> Reply:
        """Ask the model and return its reply."""
        reply: Reply = await self.model.generate(messages, schema=self.schema, **{**self.parameters, **more})
        if reply.parsed is not None and (coerced := _coerced_fields(reply)):
            annotate(coerced=coerced)
        return reply

    def identity(self) -> Any:
        """The part of the node that belongs into the fingerprint of a run."""
        return self.model.identity()


def read_model(section: Section, building: Building, node: Section) -> ModelUse:
    """The model of a section `{name, api, parameters, structured_output}`; the structured output may be beside it.

    A model that cannot be built is reported and left out, so that other errors of the node are found too.
    """
    from karat import models

    section.known(("name", "api", "parameters", "structured_output", *OWN, *OTHERS, *ELSEWHERE))
    for key in ("output_type", "input_type"):
        if (kind := section.text(key)) not in (None, "text"):
            section.problem(f"not supported: {kind} {key.removesuffix('_type')}", key)
    section.without_effect("provider", "model_type", "backend", instead="its name says where a model is")
    given = {key: section.given[key] for key in (*OWN, *OTHERS) if section.given.get(key) is not None}
    parameters = {**given, **section.mapping("parameters")}
    for key in parameters:
        if not isinstance(key, str):
            section.problem("must be a word", "parameters", str(key))
        elif mistyped := _nearest_parameter(key):
            section.problem(f"unknown key, did you mean {mistyped!r}", "parameters", key)
    outside = section if "structured_output" in section else node
    schema = read_structured_output(outside, building.place)
    name = building.model or section.text("name") or building.unnamed
    api: Any = None if building.model else section.text("api")  # another model may not speak it
    model = None
    try:
        model = models.get(name, api=api)
        return ModelUse(model, parameters, schema)
    except KaratError as error:
        section.problems.caught((*section.place, "name" if model is None else "parameters"), error)
        return ModelUse(None, {}, schema)


COERCED = "coerced"
"""In the metadata of a model call: the fields of its answer that were text and were read as another type."""


def _coerced_fields(reply: Reply) -> dict[str, str]:
    """The fields that the model wrote as text and the schema made a number or a boolean of."""
    from karat.graph.sygra._functions import extract_and_load_json  # which imports the nodes

    parsed = to_json_value(reply.parsed)
    written = extract_and_load_json(reply.text)
    return dict(_differing(written, parsed, ""))


def _differing(written: Any, parsed: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(written, dict) and isinstance(parsed, dict):
        for key in written.keys() & parsed.keys():
            yield from _differing(written[key], parsed[key], f"{path}.{key}" if path else str(key))
    elif isinstance(written, list) and isinstance(parsed, list):
        for at, (one, other) in enumerate(zip(written, parsed, strict=False)):
            yield from _differing(one, other, f"{path}[{at}]")
    elif isinstance(written, str) and isinstance(parsed, (bool, int, float)):
        yield path, type(parsed).__name__


def _nearest_parameter(key: str) -> str | None:
    """The parameter a key is one letter away from; others go to the provider as they are, which may know them."""
    known = (*OWN, *OTHERS)
    close = [] if key in known else difflib.get_close_matches(key.lower(), known, n=1, cutoff=0.9)
    return close[0] if close else None


def message_of(reply: Reply, role: str = "assistant", strips: bool = True) -> Message:
    """A reply as the message that post-processors get; whitespace around its text is removed by default.

    The text of a structured reply is JSON: what stood around it, such as a fence, is left out.
    """
    calls = [{"id": call.id, "name": call.name, "args": call.arguments} for call in reply.tool_calls]
    text = reply.text.strip() if strips else reply.text
    if reply.parsed is not None and not _is_json(text):
        text = msgspec.json.encode(to_json_value(reply.parsed)).decode()
    return Message(text, role, calls)


def _is_json(text: str) -> bool:
    try:
        msgspec.json.decode(text)
    except msgspec.DecodeError:
        return False
    return True


TOOL_CALLS = "tool_calls"
"""Where an llm node with tools puts those that the model wants called."""


class ModelNode(Node):
    """Base of nodes that call a model: the prompt, the functions around it, the conversation.

    A node works on its own copy of the state. Changes by a pre-processor, also inside of lists and mappings, are
    visible to the prompt and the post-processor of the same node only. The node adds to the record what its
    post-processor returns.
    """

    is_async = True
    strips = True
    """Whether whitespace around an answer is dropped."""

    use: ModelUse
    """The model of a node that asks one."""

    def __init__(
        self,
        name: str,
        section: Section,
        building: Building,
        prompt: Prompt,
        use: ModelUse | None = None,
        tools: Sequence[Tool] = (),
    ) -> None:
        super().__init__(name, output_keys_of(section) or [MESSAGES])
        self.prompt = prompt
        self.variables = [] if "pre_process" in section else list(prompt.variables)  # it may set them
        self.input_key = section.text("input_key", MESSAGES) or MESSAGES
        self.role = section.text("output_role", "assistant") or "assistant"
        if self.role not in ROLES:
            section.problem(f"unknown role: {did_you_mean(self.role, ROLES)}", "output_role")
        self.pre_process = building.function(section, "pre_process", 1)
        self.post_process = building.function(section, "post_process", 2)
        self.parts = [f.part for f in (self.pre_process, self.post_process) if f is not None]
        self.declared = "output_keys" in section or self.post_process is None
        self.history = section.flag("chat_history")
        self.beside = [CHAT_HISTORY] if self.history else []
        self.window: int = building.properties["chat_history_window_size"]
        self.multiturn = building.properties["chat_conversation"] == "multiturn"
        self.tools = {tool.name: tool for tool in tools}
        self.parts += [tool.function for tool in tools]
        if use is not None:
            self.use = use
            self.models = [use]
            self.parts += [use.schema] if isinstance(use.schema, type) else []
        self.read(section)

    def read(self, section: Section) -> None:
        """Read what this kind of node has beside the keys of all of them."""

    async def prepare(self, state: SygraState) -> tuple[SygraState, list[dict[str, Any]]]:
        """The node's own state, and the messages to be asked: the prompt, the history, the conversation."""
        local = SygraState(state)
        if self.pre_process is not None:
            local = state.mutable_copy()
            given = await called(self.pre_process, local)
            if given is not None and given is not local:
                if not isinstance(given, dict):
                    raise TypeError(
                        f"pre_process of {self.name} returned {type(given).__name__}:"
                        " return the state, or a mapping of what it changes"
                    )
                local.update(given)
        entries = local.get(CHAT_HISTORY) if self.history else None
        if entries and not self.multiturn:
            return local, [self._transcript(entries)]
        messages = self.prompt.fill(local)
        if entries:
            messages = self._with_history(messages, entries)
        conversation = local.get(self.input_key)
        if isinstance(conversation, list):
            messages += [as_message(each) for each in conversation]
        return local, messages

    def _with_history(self, messages: list[dict[str, Any]], entries: list[Any]) -> list[dict[str, Any]]:
        first = next((at for at, m in enumerate(messages) if m["role"] != "system"), len(messages))
        return [*messages[:first], *_turns(self._recent(entries)), *messages[first:]]

    def _recent(self, entries: list[Any]) -> list[Any]:
        return entries[-self.window :] if self.window else []

    def _transcript(self, entries: list[Any]) -> dict[str, Any]:
        """The conversation as one message in the place of the prompt, with the words and the lines of SyGra's.

        The first turn stands before the recent ones, also where it is one of them.
        """
        lines = [*SINGLE_TURN]
        asked = next((m for m in _request_messages(entries[0]) if m.get("role") == "user"), None)
        if asked is not None:
            lines.append(f"Organizer: {asked.get('content')}")
        for entry in [entries[0], *self._recent(entries)]:
            content = entry.get("response") if "request" in entry else entry.get("content")
            lines.append(f"{entry.get('name') or entry.get('role') or ''}: {content}")
        lines.append(NEXT_TURN.format(self.name))
        return {"role": "user", "content": "\n".join(lines)}

    async def finish(
        self,
        state: SygraState,
        local: SygraState,
        message: Message,
        parsed: object,
        messages: list[dict[str, Any]],
    ) -> None:
        """Put an answer into the state of the record."""
        if self.post_process is not None:
            who = f"post_process of {self.name}"
            state.merge(await self.processed(message, local), who)
        else:
            already_set = [key for key in self.output_keys if key in self.beside]
            keep(state, self.output_keys, message, parsed, self.name, already_set)
        if self.history:
            asked = [{"role": m["role"], "content": m["content"]} for m in messages]
            entry = {"name": self.name, "request": asked, "response": message.content}
            state.append(CHAT_HISTORY, [entry])

    async def processed(self, message: Message, local: SygraState) -> Any:
        """The return value of the post-processor, or its changes of the state if it returns nothing."""
        assert self.post_process is not None
        before = dict(local)
        # Without a pre-processor, values are those of the record: what is changed inside them is changed there.
        inside = None if self.pre_process is None else mutable_copy(before)
        given = await called(self.post_process, SygraMessage(message), local)
        if given is None:
            given = {
                key: value
                for key, value in local.items()
                if value is not before.get(key, before)
                or (inside is not None and _differ(value, inside[key]))
            }
        return local.added(given)


def _differ(one: Any, other: Any) -> bool:
    try:
        return bool(one != other)
    except Exception:  # such as arrays, which have no single answer
        return True


SINGLE_TURN = (
    "You take part in a conversation, as the person that your instructions describe.",
    "The conversation so far, between the organizer and the agents:",
)
NEXT_TURN = "\nWrite the next turn, that of {}: its text alone, without a name before it and without remarks."
"""What `chat_conversation: singleturn` writes around a conversation, in karat's own words."""


def _request_messages(entry: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The messages that an entry of a chat history was the answer to; a turn that data brought is one itself."""
    if "request" not in entry:
        return [dict(entry)]
    return [dict(each) for each in entry["request"] or () if isinstance(each, Mapping)]


def _turns(entries: list[Any]) -> list[dict[str, Any]]:
    """Entries of a chat history as messages. Turns that data brought begin with one of the user's."""
    out: list[dict[str, Any]] = []
    for entry in entries:
        if not isinstance(entry, Mapping):
            continue
        if "role" in entry:
            if out or entry["role"] == "user":
                out.append(as_message(entry))
            continue
        asked = [m for m in entry.get("request") or () if m.get("role") == "user"]
        out += [{"role": "user", "content": m["content"]} for m in asked[-1:]]
        out.append({"role": "assistant", "content": entry.get("response", "")})
    return out


class LlmNode(ModelNode):
    """A node that sends its prompt to one model."""

    kind = "llm"

    def read(self, section: Section) -> None:
        self._more: dict[str, Any] = {}
        if self.tools:
            self._more["tools"] = [tool.described for tool in self.tools.values()]
            self._more["tool_choice"] = section.text("tool_choice", "auto")
            self.beside.append(TOOL_CALLS)

    async def run_async(self, state: SygraState, record: Record) -> None:
        local, messages = await self.prepare(state)
        reply: Reply = await self.use.ask(messages, **self._more)
        if self.tools:
            state[TOOL_CALLS] = local[TOOL_CALLS] = reply.tool_call_messages
        await self.finish(state, local, message_of(reply, self.role, self.strips), reply.parsed, messages)


async def called(function: Applied, *arguments: Any) -> Any:
    """The return value of a function of the task, awaited if needed."""
    given = function(*arguments)
    return await given if inspect.isawaitable(given) else given


def keep(
    state: SygraState,
    keys: list[str],
    message: Message,
    parsed: object,
    node: str,
    already_set: Collection[str] = (),
) -> None:
    """Store an answer without a post-processor: the fields of a structured answer by name, else the text.

    Keys in `already_set` are left as they are.
    """
    keys = [key for key in keys if key not in already_set]
    if not keys:
        return
    if keys == [MESSAGES]:
        state.append(MESSAGES, [Message(message, name=node)])
        return
    value = parsed if parsed is not None else message.content
    value = to_json_value(value)
    if isinstance(value, Mapping) and all(key in value for key in keys):
        state.update({key: value[key] for key in keys})
    else:
        state[keys[0]] = value


def check_output_keys(section: Section, keys: list[str], schema: object) -> None:
    """Fail if several fields are to be filled from one text."""
    if len(keys) < 2 or "post_process" in section:
        return
    written = schema.schema if isinstance(schema, OutputSchema) else schema
    properties = written.get("properties", {}) if isinstance(written, Mapping) else None
    if schema is None:
        section.problem(
            "several output_keys need a structured_output with these fields, or a post_process", "output_keys"
        )
    elif properties is not None:
        for key in keys:
            if key not in properties:
                section.problem(f"the structured_output has no field {key!r}", "output_keys")


def build_llm(name: str, section: Section, building: Building) -> Node:
    """An llm node from its section."""
    section.known((*COMMON, *MODEL_KEYS))
    prompt, use = read_prompt(section), read_use(section, building)
    tools = read_tools(section, building)
    if not tools:
        section.without_effect("tool_choice", instead="the node has no tools")
    node = LlmNode(name, section, building, prompt, use, tools)
    keys = [key for key in node.output_keys if key not in node.beside]
    check_output_keys(section, keys, use.schema)
    return node


def read_use(section: Section, building: Building) -> ModelUse:
    """The model of a node: `model: NAME` or `model: {name, …}`."""
    given = section.given.get("model")
    value = {"name": given} if isinstance(given, str) else given
    return read_model(Section(value, (*section.place, "model"), section.problems), building, section)


class MultiLlmNode(ModelNode):
    """A node that asks models in parallel; the replies go into the state as a list with one mapping, by model label.

    An answer is the text of the model, also where it was asked for structured output. `multi_llm_post_process` gets a
    mapping of labels to what each model would add to the state alone, and the state.
    """

    kind = "multi_llm"

    def __init__(
        self, name: str, section: Section, building: Building, prompt: Prompt, uses: dict[str, ModelUse]
    ) -> None:
        super().__init__(name, section, building, prompt)
        self.output_keys = output_keys_of(section) or ["model_responses"]
        self.uses = uses
        self.models = list(uses.values())
        self.parts += [use.schema for use in uses.values() if isinstance(use.schema, type)]
        self.gather = building.function(section, "multi_llm_post_process", 2)
        if self.gather is not None:
            self.parts.append(self.gather.part)
            self.declared = "output_keys" in section

    async def run_async(self, state: SygraState, record: Record) -> None:
        local, messages = await self.prepare(state)
        replies = await self._ask_all(messages)
        key = self.output_keys[0]
        updates = {label: await self._read(reply, local) for label, reply in replies.items()}
        if self.gather is not None:
            given = local.added(await called(self.gather, updates, local))
            state.merge(given, f"multi_llm_post_process of {self.name}")
            return
        answers = {label: _update_value(update, key) for label, update in updates.items()}
        if len(self.output_keys) == 1:
            state.merge({key: [answers]}, self.name)
        else:
            state.update(zip(self.output_keys, answers.values(), strict=False))

    async def _ask_all(self, messages: list[dict[str, Any]]) -> dict[str, Reply]:
        """All replies; when one of the models fails the others are not waited for."""
        asked = [asyncio.ensure_future(use.ask(messages)) for use in self.uses.values()]
        try:
            return dict(zip(self.uses, await asyncio.gather(*asked), strict=True))
        except BaseException:
            for each in asked:
                each.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
            raise

    async def _read(self, reply: Reply, local: SygraState) -> Any:
        """The result of one model: the return value of the post-processor, or the reply under the node's output key."""
        message = message_of(reply, self.role, self.strips)
        if self.post_process is not None:
            own = SygraState(local)
            own.copied = local.copied
            return await self.processed(message, own)
        key = self.output_keys[0]
        if key == MESSAGES:
            return {key: [Message(message, name=self.name)]}
        return {key: message.content}


def _update_value(update: Any, key: str) -> Any:
    return update[key] if isinstance(update, Mapping) and key in update else update


def build_multi_llm(name: str, section: Section, building: Building) -> Node:
    """A multi_llm node from its section."""
    section.known((*COMMON, *MODEL_KEYS, "models", "multi_llm_post_process"))
    section.without_effect("model", instead="models names them")
    section.without_effect("tools", "tool_choice", instead="an llm or agent node uses tools")
    prompt = read_prompt(section)
    models, uses = section.section("models"), {}
    if not models.given:
        section.problem("needs models: a mapping of labels to {name, parameters}")
    for label, given in models.given.items():
        value = {"name": given} if isinstance(given, str) else given
        inner = Section(value, (*models.place, label), section.problems)
        uses[str(label)] = read_model(inner, building, section)
    return MultiLlmNode(name, section, building, prompt, uses)


STEPS = 10
AGENT_PROMPT, AGENT_NAME = "_agent_prompt", "_agent_name"
"""Variables with which a pre-processor gives an agent its instructions and its name."""


class AgentOutOfSteps(Exception):
    """An agent that went on calling tools and never answered."""


class AgentNode(ModelNode):
    """A bounded loop of model and tools. Every call of either is in the trace of the record."""

    kind = "agent"
    strips = False

    def read(self, section: Section) -> None:
        self.steps = section.integer("max_steps", STEPS, 1)
        self.injected = _injected_messages(section)

    async def run_async(self, state: SygraState, record: Record) -> None:
        local, asked = await self.prepare(state)
        described = [tool.described for tool in self.tools.values()]
        before = len(state.get(CHAT_HISTORY) or ()) // 2
        messages = self._with_instructions(asked, local, before)
        for _ in range(self.steps):
            reply = await self.use.ask(messages, tools=described or None)
            if not reply.tool_calls:
                message = message_of(reply, self.role, self.strips)
                if local.get(AGENT_NAME):
                    message["name"] = str(local[AGENT_NAME])
                await self.finish(state, local, message, reply.parsed, asked)
                return
            messages.append({**reply.message, "content": reply.text or None})
            replies = await asyncio.gather(*(self._call(call) for call in reply.tool_calls))
            for call, text in zip(reply.tool_calls, replies, strict=True):
                messages.append({"role": "tool", "tool_call_id": call.id, "name": call.name, "content": text})
        raise AgentOutOfSteps(
            f"no final reply within {self.steps} steps: raise max_steps, or look at the trace"
        )

    def _with_instructions(
        self, asked: list[dict[str, Any]], state: SygraState, turn: int
    ) -> list[dict[str, Any]]:
        """The messages with the agent's instructions first: its prompt's, or `_agent_prompt` of the state.

        The messages of `inject_system_messages` for the turn are added to them.
        """
        own = next((at for at, message in enumerate(asked) if message["role"] == "system"), None)
        text = state.get(AGENT_PROMPT) if own is None else asked[own]["content"]
        parts = [text if isinstance(text, str) else str(text)] if text else []
        parts += [self.injected[turn]] if turn in self.injected else []
        rest = [message for at, message in enumerate(asked) if at != own]
        return [{"role": "system", "content": "\n".join(parts)}, *rest] if parts else rest

    async def _call(self, call: Any) -> str:
        tool = self.tools.get(call.name)
        if tool is None:
            return f"error: there is no tool {call.name!r}: {did_you_mean(call.name, self.tools)}"
        return await tool.call(call.arguments)


def _injected_messages(section: Section) -> dict[int, str]:
    """Messages to add to the instructions after a number of turns: pairs of entries of the chat history."""
    out = {}
    given = section.given.get("inject_system_messages")
    entries = given if isinstance(given, list) else [section.mapping("inject_system_messages")]
    for at, entry in enumerate(entries):
        if not isinstance(entry, dict):
            section.problem("must be a mapping of a number of turns to a text", "inject_system_messages", at)
    for key, text in (pair for entry in entries if isinstance(entry, dict) for pair in entry.items()):
        if not str(key).isdigit() or not isinstance(text, str):
            section.problem("must be a number of turns with a text", "inject_system_messages", str(key))
        else:
            out[int(key)] = text
    return out


def build_agent(name: str, section: Section, building: Building) -> Node:
    """An agent node from its section."""
    section.known((*COMMON, *MODEL_KEYS, "max_steps", "inject_system_messages"))
    section.without_effect("tool_choice", instead="an agent's model chooses its tools")
    prompt, use = read_prompt(section), read_use(section, building)
    tools = read_tools(section, building)
    node = AgentNode(name, section, building, prompt, use, tools)
    check_output_keys(section, node.output_keys, use.schema)
    return node
