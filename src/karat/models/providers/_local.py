"""The embedded model: llama.cpp in this process, asked over loopback like any OpenAI-compatible server.

Asking over HTTP, not through its Python functions, keeps calls off threads, lets a call that is given up free its
slot at once, and leaves limits, time-outs and errors to the code that has them already.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from karat.errors import MissingDependency, RequestError
from karat.models._messages import Request
from karat.models._retry import counters
from karat.models.providers import Provider, Quirks, register_provider
from karat.models.providers import _weights as weights

if TYPE_CHECKING:
    from karat.models._endpoints import Endpoint

SLOTS = 4
CONTEXT = 2048


def slot_count() -> int:
    """How many answers are written at the same time."""
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
        parameters.n_ctx = slots * int(os.environ.get("KARAT_LOCAL_CONTEXT") or CONTEXT)
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
        """Frees the model."""
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
    """Frees every loaded model."""
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
    quirks = Quirks(
        max_tokens="max_tokens", several=False
    )  # with several it counts the tokens of one answer only

    def __init__(self) -> None:
        self.concurrency = slot_count()

    def embeddings_url(self, base_url: str) -> str:
        raise RequestError("a local GGUF answers and does not embed: use local/wordllama or openai/NAME")

    def headers(self, key: str | None, endpoint: Endpoint) -> dict[str, str]:
        return super().headers(server_for(endpoint.model).key, endpoint)

    def body(self, endpoint: Endpoint, request: Request, native_schema: bool) -> dict[str, Any]:
        # A prompt that reuses the beginning of another is added up in another order, and may round differently.
        return {**super().body(endpoint, request, native_schema), "cache_prompt": False, **request.extra}

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
