"""A Model: what answers messages, from sync and async code alike, with its calls recorded; and embedders."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import importlib.util
import logging
import operator
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack

import msgspec

from karat.errors import KaratError, MissingDependency, RequestError, Stopped, for_thread
from karat.models._endpoints import (
    Endpoint,
    defined_names,
    provider_named,
    provider_of,
    resolve,
    with_api,
    without_secret,
)
from karat.models._failures import Attempt, BrokenBody, ParameterRefused, one_line
from karat.models._limits import gather_or_cancel
from karat.models._messages import (
    CallOptions,
    Messages,
    Parameters,
    Reply,
    Request,
    check_parameters,
    read_messages,
    read_options,
)
from karat.models._prices import worst_cost
from karat.models._recording import current, recording, sample
from karat.models._request_context import RequestContext, Timing, redactor_of, secrets_of, usage_of_failure
from karat.models._runtime import shared
from karat.models._service import Reservation, Service
from karat.models._structured import OutputSchema, output_schema
from karat.models.providers import Tokens, embedding_tokens, providers
from karat.models.providers import _weights as weights
from karat.models.providers._model_rules import prefill_refusal, refusal, rules_for
from karat.records import Call, Usage
from karat.registry import Registry
from karat.serialization import prepared

if TYPE_CHECKING:
    import numpy

_exact = msgspec.json.Encoder(order="deterministic").encode


def get(
    spec: str | Model | None = None,
    *,
    role: Literal["task", "judge"] = "task",
    api: Literal["chat", "responses", "anthropic"] | None = None,
    **parameters: Unpack[Parameters],
) -> Model:
    """The model a spec names; without one, the default of the role.

    `parameters` (temperature, max_tokens, effort, …) are used wherever a call does not give its own; `api` is the
    wire format, which is chosen by provider and model otherwise.
    """
    if isinstance(spec, Model):
        endpoint = spec.endpoint
    else:
        endpoint = resolve(spec, role=role)
    if api is not None:
        endpoint = with_api(endpoint, api)
    if parameters:
        endpoint = msgspec.structs.replace(endpoint, parameters={**endpoint.parameters, **parameters})
    if endpoint.provider == "local":
        embedder = find_embedder(endpoint)
        if embedder is not None:
            return embedder
        from karat.models.providers import _weights as weights

        weights.find(endpoint.model)  # report missing weights now, not at the first call
    return Model(endpoint)


class Model:
    """A model that answers messages. Made by `get`; it holds no connection and no secret."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.spec = endpoint.spec
        self._identity = hashlib.blake2b(_exact(self._place()), digest_size=20).digest()
        self._unanswered = usage_of_failure(endpoint, asyncio.CancelledError())
        self._known = rules_for(endpoint.model) if endpoint.official else None
        self._unsupported = provider_of(endpoint).format(endpoint).unsupported
        self._may_refuse = bool(self._known or self._unsupported or endpoint.quirks.ignored_while_thinking)
        check_parameters(endpoint.parameters)  # now: they are stored with the run
        self._refuse(endpoint.parameters)

    def __repr__(self) -> str:
        return f"<Model {self.spec}>"

    def _place(self) -> dict[str, Any]:
        # Parameters are part of each request, where a call may override them.
        return {k: v for k, v in self.endpoint.identity().items() if k != "parameters"}

    def identity(self) -> dict[str, Any]:
        """Return the model's part of a run's fingerprint, without secrets and accidental addresses."""
        return self.endpoint.identity()

    @functools.cached_property
    def in_batch(self) -> Endpoint:
        """The endpoint with what its batch API costs. ParameterRefused: there is none."""
        endpoint, price = self.endpoint, self.endpoint.price
        if not provider_of(endpoint).batches:
            raise ParameterRefused(
                f"{endpoint.spec}: {endpoint.provider} has no batch API that karat knows: leave batch out"
            )
        return msgspec.structs.replace(endpoint, price=price and price.in_batch())

    @property
    def priced(self) -> bool:
        """Whether the price is known; a budget needs it."""
        return self.endpoint.price is not None

    @property
    def context_tokens(self) -> int | None:
        """Return how many tokens a prompt and its answer may have together; None if that is unknown."""
        return provider_of(self.endpoint).context_tokens(self.endpoint)

    def answer_tokens(self, limit: int | None = None, *, structured: bool = False) -> int | None:
        """Return the most tokens of an answer: `limit`, else that of the model's parameters, else the model's own."""
        given = limit or self.endpoint.parameters.get("max_tokens")
        context = self.context_tokens
        if given is None:
            given = provider_of(self.endpoint).answer_tokens(self.endpoint, structured)
        return given if given is None or context is None else min(int(given), context)

    @property
    def follows_grammar(self) -> bool:
        """Whether every keyword of a schema binds the answer, as a grammar does; otherwise only the portable ones."""
        return provider_of(self.endpoint).grammar

    async def generate(self, messages: Messages, **options: Unpack[CallOptions]) -> Reply:
        """The model's answer. What is not given comes from the model's `parameters`, else from the provider."""
        pending = self._pending(messages, options)
        runtime = shared()
        try:
            reply = await runtime.background.call(runtime.service.generate(pending.context))
        except BaseException as error:
            pending.failed(error)
            raise
        pending.answered(reply)
        return reply

    def generate_sync(self, messages: Messages, **options: Unpack[CallOptions]) -> Reply:
        """As `generate`, for sync code in any thread."""
        pending = self._pending(messages, options)
        runtime = shared()
        try:
            reply = runtime.background.call_sync(runtime.service.generate(pending.context))
        except BaseException as error:
            pending.failed(error)
            raise
        pending.answered(reply)
        return reply

    def check_options(self, options: Mapping[str, Any]) -> None:
        """Raise what a call with these options would raise before anything is sent: wrong, or known to be refused."""
        self._refuse(read_options(options, self.endpoint.parameters))

    async def embed(self, texts: Sequence[str]) -> numpy.ndarray[Any, Any]:
        """Embed texts: return an array of shape (texts, dimensions)."""
        runtime, embedding = shared(), Embedding(self.endpoint, texts, current())
        try:
            embedded = await runtime.background.call(self._embed(runtime.service, embedding))
        except BaseException as error:
            embedding.failed(error)
            raise
        return embedding.answered(embedded)

    def embed_sync(self, texts: Sequence[str]) -> numpy.ndarray[Any, Any]:
        """As `embed`, for sync code in any thread."""
        runtime, embedding = shared(), Embedding(self.endpoint, texts, current())
        try:
            embedded = runtime.background.call_sync(self._embed(runtime.service, embedding))
        except BaseException as error:
            embedding.failed(error)
            raise
        return embedding.answered(embedded)

    async def _embed(self, service: Service, embedding: Embedding) -> Embedded:
        """The vectors, on the background loop; here from an OpenAI-compatible server."""
        return await embed_over_http(service, embedding)

    def _pending(self, messages: Messages, options: Mapping[str, Any]) -> Pending:
        schema = options.get("schema")
        form = output_schema(schema) if schema is not None else None
        given = read_options(options, self.endpoint.parameters)
        if self._may_refuse:
            self._refuse(given)
        stream, deterministic = False, None
        if given:
            stream, deterministic = given.pop("stream", False), given.pop("deterministic", None)
        if form is not None:
            given["schema"] = form.schema
        request = Request(messages=read_messages(messages), **given)
        if self._known is not None and not self._known.prefill:
            problem = prefill_refusal(self.endpoint, request)
            if problem is not None:
                raise RequestError(problem)
        if deterministic is None:
            deterministic = request.temperature == 0
        return Pending(self, request, form, stream, deterministic)

    def _refuse(self, given: Mapping[str, Any]) -> None:
        problem = refusal(self.endpoint, given)
        for name in self._unsupported:
            if given.get(name) is not None:
                problem = f"{self.spec} uses the {self.endpoint.api} API, which has no {name}: remove it" + (
                    ", or set api: chat" if "chat" in provider_of(self.endpoint).apis else ""
                )
        if problem is not None:
            refused = ParameterRefused(problem)
            calls = current()
            if calls is not None:
                calls.stopped = refused
            raise refused


class Pending:
    """A call from its beginning to its end, on the caller's side: its place in the trace and in the cache."""

    __slots__ = ("calls", "context", "input", "place", "spec")

    def __init__(
        self,
        model: Model,
        request: Request,
        form: OutputSchema | None = None,
        stream: bool = False,
        deterministic: bool | None = None,
    ) -> None:
        if deterministic is None:
            deterministic = request.temperature == 0
        endpoint = self.spec = model.endpoint
        try:
            encoded = _exact(request)
        except (TypeError, ValueError, msgspec.MsgspecError) as error:
            raise RequestError(f"{model.spec}: the request is not JSON: {error}") from None
        number = sample.get()
        key = model._identity + encoded + (b"\nsample %d" % number if number else b"")
        digest = hashlib.blake2b(key, digest_size=20).digest()
        calls = self.calls = current()
        if calls is not None and calls.batch:
            try:
                endpoint = self.spec = model.in_batch
            except ParameterRefused as refused:
                calls.stopped = refused
                raise
        if calls is None:
            self.context = RequestContext(
                endpoint, request, digest, form, stream=stream, deterministic=deterministic
            )
            return
        if calls.budget is not None and endpoint.price is None:
            from karat.models._prices import no_price

            calls.stopped = no_price(endpoint.spec)
            raise calls.stopped
        self.context = RequestContext(
            endpoint,
            request,
            digest,
            form,
            calls.example,
            calls.attempt,
            calls.replicate,
            calls.scope,
            calls.occurrence(digest),
            calls.cache,
            calls.budget,
            calls.uncommitted,
            calls.permit,
            stream=stream and not calls.batch,
            batch=calls.batch,
            deterministic=deterministic,
        )
        self.input = _recorded(endpoint, request, encoded)
        self.place = calls.begin(
            Call(
                kind="model",
                name=endpoint.spec,
                input=self.input,
                error="unfinished",
                usage=model._unanswered,
            )
        )

    def answered(self, reply: Reply) -> None:
        """Fill the call's place in the trace."""
        if self.calls is None:
            return
        output: Any = reply.text
        if reply.tool_calls:
            output = {"text": reply.text, "tool_calls": msgspec.to_builtins(reply.tool_calls)}
        elif len(reply.choices) > 1:
            output = {"text": reply.text, "texts": [choice.text for choice in reply.choices]}
        metadata: dict[str, Any] = {"finish_reason": reply.finish_reason, "served_model": reply.served_model}
        if output is reply.text and not reply.attempts and not reply.logprobs and _is_plain(self.input):
            self.calls.plain_calls += 1
        if reply.attempts:
            metadata["attempts"] = msgspec.to_builtins(reply.attempts)
        if reply.thinking:
            metadata["thinking"] = reply.thinking
        if reply.logprobs:
            metadata["logprobs"] = reply.logprobs
        if reply.first_token_seconds is not None:
            metadata["first_token_seconds"] = reply.first_token_seconds
            metadata["tokens_per_second"] = reply.tokens_per_second
        if reply.service_tier:
            metadata["service_tier"] = reply.service_tier
        if reply.web_searches:
            metadata["web_searches"] = reply.web_searches
        self.calls.finish(
            self.place,
            Call(
                kind="model",
                name=self.spec.spec,
                input=self.input,
                output=output,
                seconds=reply.seconds,
                service_seconds=reply.service_seconds,
                queue_seconds=reply.queue_seconds,
                cached=reply.cached,
                usage=reply.usage,
                metadata=metadata,
            ),
        )

    def failed(self, error: BaseException) -> None:
        """Record in the trace why the call has no reply."""
        if self.calls is None:
            return
        if isinstance(error, Stopped):
            self.calls.stopped = error
        cancelled = isinstance(error, (asyncio.CancelledError, KeyboardInterrupt))
        timing = self.context.timing
        self.calls.finish(
            self.place,
            Call(
                kind="model",
                name=self.spec.spec,
                input=self.input,
                error="cancelled" if cancelled else f"{type(error).__name__}: {error}",
                seconds=timing.service,
                service_seconds=timing.service,
                queue_seconds=timing.queue,
                usage=usage_of_failure(self.spec, error),
                metadata=getattr(error, "metadata", {}),
            ),
        )


def _recorded(endpoint: Endpoint, request: Request, encoded: bytes) -> dict[str, Any]:
    """The request as the trace keeps it, without a key that has slipped into it."""
    secrets = secrets_of(endpoint)
    if secrets:
        redacted = redactor_of(secrets).in_bytes(encoded)
        if redacted is not encoded and redacted != encoded:
            request = msgspec.json.decode(redacted, type=prepared(Request))
    out: dict[str, Any] = {"messages": request.messages}
    values = _options(request)
    if values != _DEFAULT_OPTIONS:
        for name, value, default in zip(_OPTION_NAMES, values, _DEFAULT_OPTIONS, strict=True):
            if value is not None and value != default:
                out[name] = value
    return out


def _is_plain(recorded: dict[str, Any]) -> bool:
    """Whether a recorded request has nothing but messages of text."""
    if len(recorded) > 1:
        return False
    for message in recorded["messages"]:
        for name, value in message.items():
            if type(value) is not str or type(name) is not str:
                return False
    return True


_OPTION_NAMES = Request.__struct_fields__[1:]
_options = operator.attrgetter(*_OPTION_NAMES)
_DEFAULT_OPTIONS = _options(Request(messages=[]))


# Texts to vectors: the call as the trace keeps it, and how an OpenAI-compatible server is asked.

BATCH = 256
"""Texts in one request."""

_encode = msgspec.json.Encoder(order="deterministic").encode


class Embedded(msgspec.Struct, frozen=True):
    """Vectors and what they took."""

    vectors: list[Any]
    tokens: Tokens | None = None
    seconds: float = 0.0
    cached: bool = False
    body: bytes = b""


class Embedding:
    """One call of `embed`, on the caller's side: what is asked, and its place in the trace."""

    def __init__(self, endpoint: Endpoint, texts: Sequence[str], calls: recording | None) -> None:
        if isinstance(texts, str) or not all(isinstance(text, str) for text in texts):
            raise RequestError("embed takes a list of texts")
        self.endpoint = endpoint
        self.texts = list(texts)
        self.calls = calls
        self.budget = calls.budget if calls is not None else None
        self.replicate = calls.replicate if calls is not None else 1
        self.cache = calls.cache if calls is not None else "use"
        self.permit = calls.permit if calls is not None else None
        self.timing = Timing()
        # The texts themselves are the task's own data and can be many; a trace needs how many there were.
        self.input = {"texts": len(self.texts), "characters": sum(map(len, self.texts))}
        if calls is not None:
            unanswered = usage_of_failure(endpoint, asyncio.CancelledError())
            self.place = calls.begin(
                Call(kind="model", name=endpoint.spec, input=self.input, error="unfinished", usage=unanswered)
            )

    def answered(self, embedded: Embedded) -> numpy.ndarray[Any, Any]:
        """Fill the call's place in the trace, and return the vectors as an array."""
        import numpy

        if self.calls is not None:
            self.calls.finish(self.place, self._call(embedded))
        if not self.texts:
            return numpy.zeros((0, 0), dtype=numpy.float32)
        return numpy.asarray(embedded.vectors, dtype=numpy.float32)

    def _call(self, embedded: Embedded) -> Call:
        price, tokens = self.endpoint.price, embedded.tokens or Tokens()
        cost: float | None = None
        if embedded.cached or (price is not None and not price.input):
            cost = 0.0
        elif price is not None and embedded.tokens is not None:
            cost = price.cost(tokens)
        return Call(
            kind="model",
            name=self.endpoint.spec,
            input=self.input,
            output={"vectors": len(embedded.vectors)},
            seconds=embedded.seconds,
            service_seconds=embedded.seconds,
            queue_seconds=self.timing.queue,
            cached=embedded.cached,
            usage=Usage(input_tokens=tokens.input, calls=1, cached_calls=int(embedded.cached), cost=cost),
            metadata={"embedding": True},
        )

    def failed(self, error: BaseException) -> None:
        """Record in the trace why there are no vectors."""
        if self.calls is not None:
            if isinstance(error, Stopped):
                self.calls.stopped = error
            text = (
                "cancelled"
                if isinstance(error, asyncio.CancelledError)
                else f"{type(error).__name__}: {error}"
            )
            call = Call(
                kind="model",
                name=self.endpoint.spec,
                input=self.input,
                error=text,
                usage=usage_of_failure(self.endpoint, error),
                metadata=getattr(error, "metadata", {}),
            )
            self.calls.finish(self.place, call)


async def embed_over_http(service: Service, embedding: Embedding) -> Embedded:
    """Vectors from an OpenAI-compatible server, kept like answers at temperature 0."""
    provider = provider_of(embedding.endpoint)
    url = provider.embeddings_url(await provider.locate(embedding.endpoint))
    groups = [embedding.texts[start : start + BATCH] for start in range(0, len(embedding.texts), BATCH)]
    parts = await gather_or_cancel(_embed_group(service, embedding, url, group) for group in groups)
    counts = [part.tokens for part in parts if not part.cached]
    return Embedded(
        vectors=[vector for part in parts for vector in part.vectors],
        tokens=None
        if None in counts
        else Tokens(input=sum(count.input for count in counts if count is not None)),
        seconds=max((part.seconds for part in parts), default=0.0),
        cached=bool(parts) and all(part.cached for part in parts),
    )


async def _embed_group(service: Service, embedding: Embedding, url: str, texts: list[str]) -> Embedded:
    endpoint = embedding.endpoint
    where = ["embed", endpoint.identity(), embedding.replicate, texts]
    key = hashlib.blake2b(_encode(where), digest_size=20).digest()
    if embedding.cache == "use":
        entry = service.cache.get(key)
        if entry is not None:
            return msgspec.structs.replace(_read(endpoint, texts, entry.body, entry.seconds), cached=True)
    body = msgspec.json.encode({"model": endpoint.model, "input": texts})
    worst = 0.0
    if embedding.budget is not None:
        worst = worst_cost(endpoint.price, Request(messages=[], max_tokens=1), len(body), endpoint.spec)
    attempts: list[Attempt] = []
    embedded = await service.post(
        service.target(endpoint, url),
        body,
        lambda answer, seconds: _read(endpoint, texts, answer, seconds),
        attempts,
        Reservation(embedding.budget, worst, len(body) / 4, embedding.permit, embedding.timing),
    )
    if embedding.cache != "off":
        commit = service.cache.put(key, endpoint.spec, embedded.body, embedded.seconds)
        if commit is not None:
            service.cache.hurry()
            await commit
    return embedded


class _Row(msgspec.Struct, gc=False):
    """One vector of a reply."""

    index: int
    embedding: list[float]


class _Rows(msgspec.Struct):
    """The vectors of a reply."""

    data: list[_Row]
    usage: Any = None


_decode_rows = msgspec.json.Decoder(prepared(_Rows)).decode
_LARGEST = 3.4e38
"""Numbers beyond this are infinite in the arrays of four bytes that vectors become."""


def _read(endpoint: Endpoint, texts: list[str], body: bytes, seconds: float) -> Embedded:
    try:
        reply = _decode_rows(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        problem = one_line(str(error), 200)
        raise BrokenBody(f"{endpoint.spec}: not a list of embeddings ({problem})") from None
    rows = sorted(reply.data, key=lambda row: row.index)
    vectors = [row.embedding for row in rows]
    if [row.index for row in rows] != list(range(len(texts))) or len({len(each) for each in vectors}) != 1:
        raise BrokenBody(
            f"{endpoint.spec}: {len(vectors)} vectors for {len(texts)} texts, or vectors of unequal length"
        )
    if not all(vector and min(vector) >= -_LARGEST and max(vector) <= _LARGEST for vector in vectors):
        raise BrokenBody(f"{endpoint.spec}: a vector is empty or has a number that is too large")
    return Embedded(vectors, embedding_tokens(reply.usage), seconds, body=body)


# Embedders that run in this process: `local/wordllama`, and those plug-ins add.


class Embedder(Model):
    """A model that only embeds. A subclass implements `vectors`, which runs in a thread."""

    def vectors(self, texts: Sequence[str]) -> Any:
        """Return one vector for each text."""
        raise NotImplementedError

    async def generate(self, messages: Messages, **parameters: Any) -> Reply:
        raise RequestError(f"{self.spec} is an embedding model and cannot generate text: use embed")

    def generate_sync(self, messages: Messages, **parameters: Any) -> Reply:
        raise RequestError(f"{self.spec} is an embedding model and cannot generate text: use embed_sync")

    async def _embed(self, service: Service, embedding: Embedding) -> Embedded:
        if not embedding.texts:
            return Embedded([], Tokens())
        start = time.perf_counter()
        vectors = await asyncio.to_thread(for_thread(self.vectors), embedding.texts)
        return Embedded(vectors, Tokens(), time.perf_counter() - start)


embedders: Registry[Callable[[Endpoint], Embedder]] = Registry("embedder", builtin=[])

register_embedder = embedders.register


def find_embedder(endpoint: Endpoint) -> Embedder | None:
    """The embedder that a `local/NAME` means, if it is one."""
    return embedders.get(endpoint.model)(endpoint) if embedders.has(endpoint.model) else None


@register_embedder("wordllama")
class WordLlamaEmbedder(Embedder):
    """WordLlama: 256 dimensions, weights inside its wheel, no network."""

    ALONE = 2_000
    """Characters from which a text is embedded alone: WordLlama pads all texts of a call to the longest."""

    _loading = threading.Lock()
    _loaded: Any = None

    def vectors(self, texts: Sequence[str]) -> Any:
        embed = self._load().embed
        if max(map(len, texts), default=0) <= self.ALONE:
            return embed(list(texts))
        import numpy

        short = iter(embed([text for text in texts if len(text) <= self.ALONE]))
        return numpy.stack([embed([text])[0] if len(text) > self.ALONE else next(short) for text in texts])

    @classmethod
    def _load(cls) -> Any:
        with cls._loading:
            if cls._loaded is None:
                found = importlib.util.find_spec("wordllama")
                if found is None or found.origin is None:
                    raise MissingDependency("wordllama", "local", "local/wordllama")
                root = logging.getLogger()
                level, handlers = root.level, list(root.handlers)
                from wordllama import WordLlama

                # Its import configures the root logger to print INFO: that is the application's to decide.
                root.setLevel(level)
                for handler in [each for each in root.handlers if each not in handlers]:
                    root.removeHandler(handler)
                cls._loaded = WordLlama.load(cache_dir=Path(found.origin).parent, disable_download=True)
            return cls._loaded


# The catalogue of usable models: what each model needs, and a check that a model answers.


def available() -> list[dict[str, Any]]:
    """List the known models as `{spec, kind, ready, needs}`; `needs` is empty if a model is ready.

    `ready` is None for a server that needs no key: whether it runs is known when it is called.
    """
    rows = [_local(name) for name in weights.KNOWN]
    rows.append(_row("local/wordllama", "embedder", _package("wordllama")))
    for name in providers.list():
        if name != "local":
            rows.append(_provider(name))
    for name in defined_names():
        endpoint = resolve(name)
        server = endpoint.base_url if endpoint.provider != "local" and not endpoint.needs_key else ""
        rows.append(_row(name, "defined", _endpoint_needs(endpoint), server))
    return rows


def check(spec: str) -> dict[str, Any]:
    """Try one call without the cache: `{spec, ok, seconds, answer, served_model, error}`."""
    start = time.perf_counter()
    out: dict[str, Any] = {
        "spec": without_secret(spec),
        "ok": False,
        "answer": "",
        "served_model": "",
        "error": None,
    }
    try:
        model = get(spec)
        out["spec"] = spec  # which holds no secret, or it would have been refused
        with recording(cache="off"):
            if isinstance(model, Embedder):
                out["answer"] = f"{model.embed_sync(['one word']).shape[1]} dimensions"
            else:
                reply = model.generate_sync("Answer with the word yes.", max_tokens=512)
                out |= {"answer": reply.text[:200], "served_model": reply.served_model}
        out["ok"] = True
    except KaratError as error:
        out["error"] = str(error)
    out["seconds"] = time.perf_counter() - start
    return out


def _row(spec: str, kind: str, needs: str, server: str = "") -> dict[str, Any]:
    if server and not needs:
        return {"spec": spec, "kind": kind, "ready": None, "needs": f"no key; a server at {server}"}
    return {"spec": spec, "kind": kind, "ready": not needs, "needs": needs}


def _package(name: str) -> str:
    return "" if importlib.util.find_spec(name) else "pip install 'karat[local]'"


def _local(name: str) -> dict[str, Any]:
    needs = _package("xllamacpp")
    if not needs:
        try:
            weights.find(name)
        except KaratError as error:
            needs = str(error)
    return _row(f"local/{name}", "local", needs)


def _provider(name: str) -> dict[str, Any]:
    provider = provider_named(name)
    model = os.environ.get("OPENAI_MODEL") if name == "openai" else None
    own = bool(provider.base_url_env and os.environ.get(provider.base_url_env))
    needs = [] if own else provider.missing_variables()
    keys = [each for each in (provider.key_env, provider.token_env) if each]
    if provider.needs_key and not own and keys and not any(os.environ.get(each) for each in keys):
        needs.append(" or ".join(keys))
    # The address in a variable is not shown: it may have a password in it.
    server = "" if provider.needs_key else provider.base_url_env if own else provider.base_url
    return _row(f"{name}/{model or 'NAME'}", "provider", ", ".join(needs), server)


def _endpoint_needs(endpoint: Endpoint) -> str:
    if endpoint.provider == "local":
        return _package("xllamacpp")
    variables = (
        [endpoint.key_env] if endpoint.needs_key and not os.environ.get(endpoint.token_env or "") else []
    )
    return ", ".join(
        name for name in [*variables, *endpoint.headers_env.values()] if not os.environ.get(name)
    )
