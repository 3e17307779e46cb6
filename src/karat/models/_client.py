"""A Model: what answers messages, from sync and async code alike, with its calls recorded."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from karat.errors import RequestError, Stopped
from karat.models._embedding import Embedded, Embedding, embed_over_http
from karat.models._endpoints import Endpoint, resolve
from karat.models._messages import (
    Messages,
    Reply,
    Request,
    body_fields,
    check_parameters,
    choice_of_tool,
    count,
    number,
    read_messages,
    stops,
    tool_list,
    whole,
)
from karat.models._recording import current, sample
from karat.models._request_context import RequestContext, redactor_of, secrets_of, spent
from karat.models._runtime import shared
from karat.models._service import Service
from karat.models._structured import OutputSchema, output_schema
from karat.records import Call

if TYPE_CHECKING:
    import numpy

_exact = msgspec.json.Encoder(order="deterministic").encode


def get(
    spec: str | Model | None = None, *, role: Literal["task", "judge"] = "task", **parameters: Any
) -> Model:
    """The model a spec names; without one, the default of the role.

    `parameters` (temperature, max_tokens, …) are used wherever a call does not give its own.
    """
    if isinstance(spec, Model):
        endpoint = spec.endpoint
    else:
        endpoint = resolve(spec, role=role)
    if parameters:
        endpoint = msgspec.structs.replace(endpoint, parameters={**endpoint.parameters, **parameters})
    if endpoint.provider == "local":
        from karat.models.providers._embedders import find_embedder

        embedder = find_embedder(endpoint)
        if embedder is not None:
            return embedder
        from karat.models.providers import _weights as weights

        weights.find(endpoint.model)  # absent weights are told now, not with the first call
    return Model(endpoint)


class Model:
    """A model that answers messages. Made by `get`; it holds no connection and no secret."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.spec = endpoint.spec
        self._identity = hashlib.blake2b(_exact(self._place()), digest_size=20).digest()
        self._unanswered = spent(endpoint, asyncio.CancelledError())
        check_parameters(endpoint.parameters)  # told now: they are stored with the run

    def __repr__(self) -> str:
        return f"<Model {self.spec}>"

    def _place(self) -> dict[str, Any]:
        # Parameters are part of each request, where a call may override them.
        return {k: v for k, v in self.endpoint.identity().items() if k != "parameters"}

    def identity(self) -> dict[str, Any]:
        """What of this model belongs into the fingerprint of a run: no secret, and no accidental address."""
        return self.endpoint.identity()

    @property
    def priced(self) -> bool:
        """Whether the price is known; a budget needs it."""
        return self.endpoint.price is not None

    async def generate(
        self,
        messages: Messages,
        *,
        temperature: float | None = None,
        max_tokens: int | None = None,
        seed: int | None = None,
        stop: str | Sequence[str] | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tool_choice: Any = None,
        schema: Any = None,
        n: int | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> Reply:
        """The model's answer. What is not given comes from the model's `parameters`, else from the provider."""
        form = output_schema(schema) if schema is not None else None
        request = self._request(
            messages, form, (temperature, max_tokens, seed, stop, tools, tool_choice, n, extra)
        )
        pending = Pending(self, request, form)
        process = shared()
        try:
            reply = await process.background.call(process.service.generate(pending.context))
        except BaseException as error:
            pending.failed(error)
            raise
        pending.answered(reply)
        return reply

    def generate_sync(
        self,
        messages: Messages,
        *,
        temperature: float | None = None,
        max_tokens: int | None = None,
        seed: int | None = None,
        stop: str | Sequence[str] | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tool_choice: Any = None,
        schema: Any = None,
        n: int | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> Reply:
        """As `generate`, for sync code in any thread."""
        form = output_schema(schema) if schema is not None else None
        request = self._request(
            messages, form, (temperature, max_tokens, seed, stop, tools, tool_choice, n, extra)
        )
        pending = Pending(self, request, form)
        process = shared()
        try:
            reply = process.background.call_sync(process.service.generate(pending.context))
        except BaseException as error:
            pending.failed(error)
            raise
        pending.answered(reply)
        return reply

    async def embed(self, texts: Sequence[str]) -> numpy.ndarray[Any, Any]:
        """One vector for each text, for models that embed: an array of shape (texts, dimensions)."""
        process, embedding = shared(), Embedding(self.endpoint, texts, current())
        try:
            embedded = await process.background.call(self._embed(process.service, embedding))
        except BaseException as error:
            embedding.failed(error)
            raise
        return embedding.answered(embedded)

    def embed_sync(self, texts: Sequence[str]) -> numpy.ndarray[Any, Any]:
        """As `embed`, for sync code in any thread."""
        process, embedding = shared(), Embedding(self.endpoint, texts, current())
        try:
            embedded = process.background.call_sync(self._embed(process.service, embedding))
        except BaseException as error:
            embedding.failed(error)
            raise
        return embedding.answered(embedded)

    async def _embed(self, service: Service, embedding: Embedding) -> Embedded:
        """The vectors, on the background loop; here from an OpenAI-compatible server."""
        return await embed_over_http(service, embedding)

    def _request(self, messages: Messages, form: OutputSchema | None, given: tuple[Any, ...]) -> Request:
        temperature, max_tokens, seed, stop, tools, tool_choice, n, extra = given
        defaults = self.endpoint.parameters
        if defaults:
            have = defaults.get
            temperature = have("temperature") if temperature is None else temperature
            max_tokens = have("max_tokens") if max_tokens is None else max_tokens
            seed = have("seed") if seed is None else seed
            stop = have("stop") if stop is None else stop
            tools = have("tools") if tools is None else tools
            tool_choice = have("tool_choice") if tool_choice is None else tool_choice
            n = have("n") if n is None else n
            own = have("extra")
            if own:
                extra = {**own, **body_fields("extra", extra)} if extra is not None else own
        return Request(
            messages=read_messages(messages),
            temperature=None if temperature is None else number("temperature", temperature),
            max_tokens=None if max_tokens is None else count("max_tokens", max_tokens),
            seed=None if seed is None else whole("seed", seed),
            stop=None if stop is None else stops("stop", stop),
            tools=None if tools is None else tool_list("tools", tools),
            tool_choice=None if tool_choice is None else choice_of_tool("tool_choice", tool_choice),
            schema=form.schema if form is not None else None,
            n=1 if n is None else count("n", n),
            extra={} if extra is None else body_fields("extra", extra),
        )


class Pending:
    """A call from its beginning to its end, on the caller's side: its place in the trace and in the cache."""

    __slots__ = ("calls", "context", "input", "place", "spec")

    def __init__(self, model: Model, request: Request, form: OutputSchema | None) -> None:
        endpoint = self.spec = model.endpoint
        try:
            encoded = _exact(request)
        except (TypeError, ValueError, msgspec.MsgspecError) as error:
            raise RequestError(f"{model.spec}: the request is not JSON: {error}") from None
        number = sample.get()
        key = model._identity + encoded + (b"\nsample %d" % number if number else b"")
        digest = hashlib.blake2b(key, digest_size=20).digest()
        calls = self.calls = current()
        if calls is None:
            self.context = RequestContext(endpoint, request, digest, form)
            return
        if calls.budget is not None and endpoint.price is None:
            from karat.models._budget import no_price

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
        """Fills the call's place in the trace."""
        if self.calls is None:
            return
        output: Any = reply.text
        if reply.tool_calls:
            output = {"text": reply.text, "tool_calls": msgspec.to_builtins(reply.tool_calls)}
        elif len(reply.choices) > 1:
            output = {"text": reply.text, "texts": [choice.text for choice in reply.choices]}
        metadata: dict[str, Any] = {"finish_reason": reply.finish_reason, "served_model": reply.served_model}
        if reply.attempts:
            metadata["attempts"] = msgspec.to_builtins(reply.attempts)
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
        """Tells in the trace why the call has no answer."""
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
                usage=spent(self.spec, error),
                metadata=getattr(error, "metadata", {}),
            ),
        )


def _recorded(endpoint: Endpoint, request: Request, encoded: bytes) -> dict[str, Any]:
    """The request as the trace keeps it, without a key that has slipped into it."""
    secrets = secrets_of(endpoint)
    if secrets:
        redacted = redactor_of(secrets).in_bytes(encoded)
        if redacted is not encoded and redacted != encoded:
            request = msgspec.json.decode(redacted, type=Request)
    out: dict[str, Any] = {"messages": request.messages}
    for name in Request.__struct_fields__[1:]:
        value = getattr(request, name)
        if value is not None and value != {} and not (name == "n" and value == 1):
            out[name] = value
    return out
