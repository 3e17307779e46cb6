"""The embedded model: llama.cpp in this process, asked over loopback like any OpenAI-compatible server.

Asking over HTTP, not through its Python functions, keeps calls off threads, lets a call that is given up free its
slot at once, and leaves limits, time-outs and errors to the code that has them already.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from karat.errors import MissingDependency, RequestError
from karat.models._messages import Request
from karat.models._recording import counters
from karat.models.providers import Provider, Quirks, register_provider
from karat.models.providers import _weights as weights

if TYPE_CHECKING:
    from karat.models._endpoints import Endpoint

_WHITESPACE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""Options of the grammar (llguidance) beside its JSON Schema: a blank after commas and colons, and none elsewhere."""

_SIMPLE = frozenset(
    {
        *(
            "type",
            "properties",
            "required",
            "additionalProperties",
            "items",
            "prefixItems",
            "minItems",
            "maxItems",
        ),
        *("minLength", "maxLength", "enum", "const", "description", "title"),
    }
)
"""Keywords that the grammar is known to take. It ignores a schema that it cannot read, without an error."""

SLOTS = 4
CONTEXT = 2048
ANSWER = 512
"""Tokens of a text for which no limit is given: a small model repeats itself until its context is full."""
LIMITS = frozenset({"max_tokens", "max_completion_tokens", "n_predict"})


def compact_grammar(schema: dict[str, Any]) -> str | None:
    """The grammar of JSON without blank lines and indentation; None for a schema that it may not be able to read.

    A small model fills JSON with white space wherever it may: more than half of its tokens, measured with the judges'
    lists. The server offers no way to forbid it beside a schema.
    """
    if not _is_simple(schema):
        return None
    import xllamacpp

    made: str = xllamacpp.json_schema_to_grammar(json.dumps({**schema, "x-guidance": _WHITESPACE}))
    return made if made.startswith("%llguidance") and "x-guidance" in made else None


def _is_simple(schema: object) -> bool:
    if isinstance(schema, bool):
        return True
    if not isinstance(schema, dict) or not schema.keys() <= _SIMPLE:
        return False
    inner = [*schema.get("properties", {}).values(), *schema.get("prefixItems", [])]
    inner += [schema[name] for name in ("items", "additionalProperties") if name in schema]
    return all(_is_simple(each) for each in inner)


def context_tokens() -> int:
    """Tokens of a prompt and its answer together."""
    return int(os.environ.get("KARAT_LOCAL_CONTEXT") or CONTEXT)


def slot_count() -> int:
    """The number of answers that are generated at the same time."""
    return int(os.environ.get("KARAT_LOCAL_SLOTS") or SLOTS)


class LlamaServer:
    """One loaded model with its slots."""

    def __init__(self, path: Path, name: str = "") -> None:
        try:
            import xllamacpp
        except ImportError:
            raise MissingDependency("xllamacpp", "local", "the embedded model") from None
        slots = slot_count()
        parameters = xllamacpp.CommonParams()
        parameters.model.path = str(path)
        # The served model name; without an alias the server reports the path of the file, which stays private.
        parameters.model_alias = {Path(name or path).name}
        parameters.n_parallel = slots
        parameters.n_ctx = slots * context_tokens()
        # llama.cpp's threads spin while they wait for each other: one that has to share its core slows all of them
        # down (five times, measured on 2 busy cores), so half of the cores are left to everybody else.
        threads = int(os.environ.get("KARAT_LOCAL_THREADS") or max(1, (os.cpu_count() or 2) // 2))
        parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = threads
        parameters.verbosity = -1  # llama.cpp writes its log to stderr otherwise
        parameters.warmup = False
        # The default temperature is 0: so small a model rarely gives useful answers when it samples freely.
        parameters.sampling.temp = 0.0
        parameters.cache_ram_mib = 0
        self.key = secrets.token_urlsafe(24)  # other users of this machine are not served
        parameters.api_keys = [self.key]
        try:
            self._server: Any = xllamacpp.Server(parameters)
        except Exception as error:
            raise RequestError(f"{path} cannot be loaded as a model: {error}") from None
        self.address = str(self._server.listening_address)

    def close(self) -> None:
        """Free the model."""
        self._server = None


_servers: dict[str, LlamaServer] = {}
_loading = threading.Lock()


def server_for(name: str) -> LlamaServer:
    """The server of a `local/NAME`, loaded when first asked for."""
    with _loading:
        if name not in _servers:
            counters.loading = f"local/{name}"
            try:
                _servers[name] = LlamaServer(weights.find(name), name)
            finally:
                counters.loading = ""
        return _servers[name]


def unload() -> None:
    """Free every loaded model."""
    with _loading:
        while _servers:
            _servers.popitem()[1].close()


@register_provider("local")
class Local(Provider):
    """A GGUF file, answered by llama.cpp in this process."""

    name = "local"
    needs_key = False
    derives_seed = True
    repeatable = True  # llama.cpp replies 500 to images, sounds and tools that it cannot read
    free = True
    # Slots share the threads, and the machine is shared with others: an answer takes minutes there, and one that is
    # given up and asked for again takes the time from the others, so that none of them ever ends.
    patience = 3600.0
    grammar = True
    quirks = Quirks(
        max_tokens="max_tokens", several=False
    )  # with several it counts the tokens of one answer only

    def __init__(self) -> None:
        self.concurrency = slot_count()

    def context_tokens(self, endpoint: Endpoint) -> int | None:
        return context_tokens()

    def answer_tokens(self, endpoint: Endpoint, structured: bool) -> int | None:
        return context_tokens() if structured else ANSWER

    def embeddings_url(self, base_url: str) -> str:
        raise RequestError(
            "a local GGUF model generates text and does not embed: use local/wordllama or openai/NAME"
        )

    def headers(self, key: str | None, endpoint: Endpoint) -> dict[str, str]:
        return super().headers(server_for(endpoint.model).key, endpoint)

    def body(self, endpoint: Endpoint, request: Request, native_schema: bool) -> dict[str, Any]:
        # A prompt that reuses the beginning of another is added up in another order, and may round differently.
        out = {**super().body(endpoint, request, native_schema), "cache_prompt": False}
        form = out.get("response_format")
        if form is None and LIMITS.isdisjoint(out) and LIMITS.isdisjoint(request.extra):
            out["max_tokens"] = ANSWER  # JSON that is cut off would be an error
        grammar = compact_grammar(form["json_schema"]["schema"]) if isinstance(form, dict) else None
        if grammar is not None:
            del out["response_format"]
            out["grammar"] = grammar
        return {**out, **request.extra}

    def identity(self, endpoint: Endpoint) -> str:
        # The content of the weights: where the file lies and which port is free today change no answer.
        if endpoint.model in weights.KNOWN:
            return "sha256:" + weights.KNOWN[endpoint.model].sha256
        path = Path(endpoint.model).expanduser()
        return "sha256:" + weights.fingerprint(path) if path.is_file() else endpoint.model

    async def locate(self, endpoint: Endpoint) -> str:
        server = _servers.get(endpoint.model)
        if server is None:
            server = await asyncio.get_running_loop().run_in_executor(None, server_for, endpoint.model)
        return server.address + "/v1"
