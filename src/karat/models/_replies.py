"""Read response bodies: choices and tokens, checked against the requested schema, or a failure."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import msgspec

from karat.models._endpoints import Endpoint, provider_of
from karat.models._failures import (
    Attempt,
    BrokenBody,
    ContentFiltered,
    ContextTooLong,
    EmptyAnswer,
    IncompleteAnswer,
    InvalidText,
    ModelFailure,
    Refused,
    SchemaMismatch,
    one_line,
)
from karat.models._messages import Choice, Reply
from karat.models._request_context import ProviderReply, RequestContext, Timing, usage_of
from karat.models.providers import Answer
from karat.redaction import Redactor
from karat.serialization import TooManyParts, decode_untrusted

T = TypeVar("T")

LARGE = 1 << 18
"""Bytes of a body whose reading takes longer than other calls should wait."""


async def beside(body: bytes, work: Callable[..., T], *given: Any) -> T:
    """Do work on a body: here, or in another thread where it is large and other calls would have to wait."""
    if len(body) < LARGE:
        return work(*given)
    return await asyncio.get_running_loop().run_in_executor(None, work, *given)


_UNREADABLE = (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError)
"""What reading a body of another form raises; a number of thousands of digits is an OverflowError."""

_NO_ANSWER = ("content_filter", "refusal", "error", "pause_turn", "model_context_window_exceeded")
"""Finish reasons after which the text is not a usable reply."""


def read_reply(endpoint: Endpoint, body: bytes, seconds: float, sent: bytes = b"") -> ProviderReply:
    """Read the reply to `sent` in a response body, or raise its failure. One unusable choice makes it unusable."""
    raw: Any = None
    try:
        raw = decode_untrusted(body)
        answer = provider_of(endpoint).parse(raw, endpoint)
    except TooManyParts as error:
        raise _never_again(BrokenBody(f"{endpoint.spec}: the response cannot be read: {error}")) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        if body.startswith(_BOM):
            return read_reply(endpoint, body.removeprefix(_BOM), seconds, sent)
        invalid = _lone_surrogate(endpoint, body)
        if invalid is not None:
            raise invalid from None
        raise BrokenBody(f"{endpoint.spec}: the response is not JSON: {body[:80]!r}") from None
    except _UNREADABLE as error:
        raise _unreadable_reply(endpoint, raw, error, sent) from None
    for choice in answer.choices:
        text = choice.text
        blank = (not text or text.isspace()) and not choice.tool_calls
        if blank or choice.finish_reason in _NO_ANSWER:
            raise _failed_answer(endpoint.spec, choice, answer, raw)
    return ProviderReply(body, raw, answer.choices, answer.tokens, answer.served_model, seconds)


def read_stream(
    endpoint: Endpoint,
    body: bytes,
    seconds: float,
    arrivals: list[tuple[int, float]],
    timing: Timing,
    sent: bytes = b"",
    redactor: Redactor | None = None,
) -> ProviderReply:
    """Read the reply in a stream of events, as if it had come at once, and note when its first piece came.

    A secret whose pieces came in several events is whole only when they are joined, so it is removed here.
    """
    if not body.removeprefix(_BOM).lstrip().startswith(_EVENT_FIELDS):
        return read_reply(endpoint, body, seconds, sent)  # a server that does not stream
    form = provider_of(endpoint).format(endpoint)
    if body.count(b"\n") + body.count(b"\r") > MOST_LINES:
        raise _never_again(BrokenBody(f"{endpoint.spec}: the stream has more than {MOST_LINES:,} lines"))
    events: list[dict[str, Any]] = []
    first_at = 0
    done = halved = False
    try:
        for data, position in _events(body):
            if data == b"[DONE]":
                done = True
                break
            event, halved = _event(data, halved)
            if isinstance(event, dict):
                events.append(event)
                if not first_at and form.begins(event):
                    first_at = position
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise BrokenBody(f"{endpoint.spec}: an event of the stream is not JSON") from None
    except _UNREADABLE as error:
        raise BrokenBody(f"{endpoint.spec}: the stream is broken: {one_line(str(error), 200)}") from None
    try:
        body_of_stream = form.assemble(events)
        if not done and not body_of_stream.get("error") and not form.is_complete(body_of_stream):
            raise ValueError("it ended before the reply was complete")
        whole = json.dumps(body_of_stream).encode() if halved else msgspec.json.encode(body_of_stream)
        if redactor:
            whole = redactor.in_bytes(whole)
    except _UNREADABLE as error:
        raise BrokenBody(f"{endpoint.spec}: the stream is broken: {one_line(str(error), 200)}") from None
    asked = read_reply(endpoint, whole, seconds, sent)
    begun, ended = arrivals[0][1], arrivals[-1][1]
    if first_at:
        came = next((at for size, at in arrivals if size >= first_at), ended)
        timing.first_token = came - begun
        if asked.tokens is not None and ended > came:
            timing.tokens_per_second = asked.tokens.output / (ended - came)
    return asked


def _event(data: bytes, halved: bool) -> tuple[Any, bool]:
    """The value of an event, and whether any so far had half of a character.

    Servers that count in UTF-16 cut texts within a pair of surrogates. The standard library reads such an event, and
    once the texts are joined, it writes the two halves as one character.
    """
    try:
        return decode_untrusted(data), halved
    except TooManyParts:
        raise
    except msgspec.DecodeError:
        if b"\\ud" not in data.lower():
            raise
        return json.loads(data), True


MOST_LINES = 1 << 21
"""Lines of a stream: five for each token of the longest replies. Events without content take far more memory than
they have bytes."""


def _never_again(failure: BrokenBody) -> BrokenBody:
    """The failure without a retry: the response would be as large."""
    failure.most = 0
    return failure


_BOM = b"\xef\xbb\xbf"
_EVENT_FIELDS = (b"data:", b"event:", b"id:", b"retry:", b":")


def _events(body: bytes) -> Iterator[tuple[bytes, int]]:
    """The data of each event of a stream, and the position of its end.

    The data lines of an event are joined (html.spec.whatwg.org, server-sent events). Some servers leave out the empty
    line between events, so lines that are JSON on their own are events of their own.
    """
    lines: list[bytes] = []
    position = 0
    for line in (*body.removeprefix(_BOM).splitlines(keepends=True), b"\n"):
        position += len(line)
        if line.startswith(b"data:"):
            lines.append(line[5:].strip())
        elif not line.strip() and lines:
            joined = b"\n".join(lines)
            if len(lines) > 1 and not _is_valid(joined):
                for each in lines:
                    if each:
                        yield each, position
            elif joined:
                yield joined, position
            lines = []


def _is_valid(data: bytes) -> bool:
    try:
        decode_untrusted(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


def _lone_surrogate(endpoint: Endpoint, body: bytes) -> InvalidText | None:
    """The failure of a complete reply that holds a lone surrogate: it was made and is paid for, asking again is not.

    msgspec refuses such text as no JSON at all; the standard library reads it.
    """
    if b"\\ud" not in body.lower():
        return None
    try:
        answer = provider_of(endpoint).parse(json.loads(body), endpoint)
    except (*_UNREADABLE, RecursionError):
        return None
    failure = InvalidText(
        f"{endpoint.spec}: the reply holds a lone surrogate (half of a character), which is not text"
    )
    failure.tokens = answer.tokens
    return failure


_STATUS = {
    "authentication_error": "401",
    "billing_error": "402",
    "permission_error": "403",
    "request_too_large": "413",
    "invalid_request_error": "400",
    "rate_limit_error": "429",
    "rate_limit_exceeded": "429",
    "insufficient_quota": "429",
    "api_error": "500",
    "server_error": "500",
    "timeout_error": "504",
    "overloaded_error": "529",
}
"""The status that an error in a stream would have had (platform.claude.com/docs/en/api/errors, and OpenAI's codes)."""


def _unreadable_reply(endpoint: Endpoint, raw: Any, error: Exception, sent: bytes) -> Exception:
    """An error that a gateway sent with a success status, or an unreadable body."""
    from karat.models._transport import failure_of

    first = raw[0] if isinstance(raw, list) and raw else raw  # Gemini wraps its errors in a list
    if isinstance(first, dict) and first.get("error"):
        message, code = provider_of(endpoint).error(raw)
        status = _STATUS.get(code, code)
        if re.fullmatch("[45][0-9][0-9]", status):
            return failure_of(endpoint, int(status), message, "" if status == code else code, {}, raw, sent)
        return BrokenBody(f"{endpoint.spec}: {message or code or 'an error without a reason'}")
    return BrokenBody(f"{endpoint.spec}: malformed response: {_missing_part(raw, error)}")


def _missing_part(raw: Any, error: Exception) -> str:
    if not isinstance(raw, dict):
        kind = {list: "a list", str: "a text", type(None): "null"}.get(type(raw), "a number or a truth value")
        return f"it is {kind}, not an object"
    if isinstance(error, KeyError):
        return f"it has no field {one_line(str(error), 60)}"
    if isinstance(error, ValueError):
        return one_line(str(error), 200)
    return f"a field has an unexpected type (fields: {one_line(', '.join(map(str, raw)), 150)})"


def _failed_answer(spec: str, choice: Choice, answer: Answer, raw: Any) -> ModelFailure:
    which = f" (one of {len(answer.choices)})" if len(answer.choices) > 1 else ""
    failure: ModelFailure
    if choice.finish_reason == "content_filter":
        failure = ContentFiltered(f"{spec}: the provider withheld the reply{which}", raw=choice.text or None)
    elif choice.finish_reason == "refusal":
        failure = Refused(f"{spec}: the model refused to answer{which}", raw=choice.text or None)
    elif choice.finish_reason == "model_context_window_exceeded":
        failure = ContextTooLong(f"{spec}: the context window was full before the reply was complete{which}")
        failure.charged = True
    elif choice.finish_reason == "pause_turn":
        failure = IncompleteAnswer(f"{spec}: the model paused its turn and did not finish it{which}")
        failure.paused = raw
    elif choice.finish_reason == "error":
        failure = BrokenBody(f"{spec}: the provider ended the reply early{which}")
    else:
        hint = ": max_tokens is too low for it" if choice.finish_reason == "length" else ""
        failure = EmptyAnswer(f"{spec}: the reply is empty{which}{hint}")
    failure.tokens = answer.tokens
    return failure


async def read_answers(context: RequestContext, asked: ProviderReply) -> ProviderReply:
    """Check a reply against its schema and read its values.

    Work that may take long runs in a separate thread, not on the event loop that all models share. The call can be
    cancelled, and other calls continue, while a hostile reply or a user's validator takes its time.
    """
    form = context.form
    if form is None:
        return asked
    if all(form.is_quick(choice.text) for choice in asked.choices):
        return _check_reply(context, asked)
    loop, done = asyncio.get_running_loop(), asyncio.get_running_loop().create_future()

    def work() -> None:
        try:
            value: Any = _check_reply(context, asked)
        except BaseException as error:
            value = error
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(_deliver, done, value)

    threading.Thread(target=work, name="karat-schema", daemon=True).start()
    outcome = await done
    if isinstance(outcome, BaseException):
        raise outcome
    result: ProviderReply = outcome
    return result


def _deliver(future: asyncio.Future[Any], value: Any) -> None:
    if not future.done():
        future.set_result(value)


def _check_reply(context: RequestContext, asked: ProviderReply) -> ProviderReply:
    form = context.form
    assert form is not None
    provider, held = provider_of(context.endpoint), context.native_schema
    choices = []
    for choice in asked.choices:
        if held:
            choice = provider.unwrap(choice, context.request, context.endpoint)
        if choice.tool_calls and not choice.text:
            choices.append(choice)  # the model calls the caller's tools first; the form is for its answer
            continue
        try:
            parsed = form.read(choice.text)
        except ValueError as error:
            problem = one_line(str(error), 300)
            failure = SchemaMismatch(
                f"{context.endpoint.spec}: the reply does not fit the schema: {problem}", raw=choice.text
            )
            failure.problem, failure.tokens = problem, asked.tokens
            raise failure from None
        choices.append(msgspec.structs.replace(choice, parsed=parsed))
    return msgspec.structs.replace(asked, choices=choices)


def reply_of(
    context: RequestContext, asked: ProviderReply, attempts: list[Attempt], cached: bool = False
) -> Reply:
    """The reply that a caller gets. A cache hit costs nothing."""
    first, tokens, price = asked.choices[0], asked.tokens, context.endpoint.price
    if cached or (price is not None and price.free):
        cost: float | None = 0.0
    else:
        cost = price.cost(tokens) if price is not None and tokens is not None else None
    return Reply(
        text=first.text,
        tool_calls=first.tool_calls,
        parsed=first.parsed,
        finish_reason=first.finish_reason,
        thinking=first.thinking,
        logprobs=first.logprobs,
        first_token_seconds=context.timing.first_token,
        tokens_per_second=context.timing.tokens_per_second,
        usage=usage_of(
            tokens,
            calls=1 + sum(each.error == SchemaMismatch.__name__ for each in attempts) if attempts else 1,
            cached_calls=int(cached),
            cost=cost,
        ),
        seconds=asked.seconds,
        service_seconds=asked.seconds if cached else context.timing.service,
        queue_seconds=context.timing.queue,
        cached=cached,
        served_model=asked.served_model,
        raw=asked.raw,
        choices=asked.choices,
        attempts=attempts,
        service_tier=tokens.tier if tokens is not None else "",
        web_searches=tokens.web_searches if tokens is not None else 0,
    )
