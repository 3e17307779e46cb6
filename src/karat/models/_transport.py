"""One HTTP request to a provider, and the failure for every way in which it can fail."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import time
import urllib.request
import zlib
from collections.abc import Mapping
from typing import Any
from urllib.parse import urljoin, urlsplit

import aiohttp
import msgspec
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from karat.errors import CredentialsRefused
from karat.models._endpoints import Endpoint, provider_of
from karat.models._failures import (
    BadRequest,
    BrokenBody,
    CertificateRejected,
    ConnectionDropped,
    ConnectionRefused,
    ContentFiltered,
    ContextTooLong,
    ModelFailure,
    ParameterRefused,
    QuotaExhausted,
    RateLimited,
    ServerFailed,
    TimedOut,
    one_line,
)
from karat.models._limits import Limiter, requested_wait
from karat.models._replies import LARGE, beside
from karat.models.providers import Provider
from karat.redaction import Redactor

LARGEST_BODY = 64 * 2**20

_TOO_LONG = (
    "context_length_exceeded",
    "maximum context length",
    "prompt is too long",
    "exceed_context_size",
    "exceeds the available context",
    "context window",
    "input is too long",
    "exceed context limit",
    "input token count",  # Gemini
    "maximum prompt length",  # xAI
    "max_new_tokens` must be",  # text-generation-inference
    "than the context length",  # LM Studio
)

_WITHHELD = (
    "content_filter",
    "content management policy",
    "content policy",
    "content_policy",
    "moderation",
    "flagged",
)
"""Words for a request that a content filter refused. A 400 with only one of the last two may be about a parameter."""


def open_session() -> aiohttp.ClientSession:
    """The session that all models of a process share. It has no limit of connections: limiters limit the requests."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=30),
        cookie_jar=aiohttp.DummyCookieJar(),
        headers={
            "User-Agent": "karat",
            "Accept": "application/json",
            "Accept-Encoding": "gzip, deflate",
            "Content-Type": "application/json",
        },
        auto_decompress=False,  # read_body decompresses, with a limit for the size
        raise_for_status=False,
    )


def proxy_for(url: str) -> str | None:
    """The proxy that the environment sets for an address; none for this machine."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if host in ("localhost", "::1") or host.startswith("127.") or urllib.request.proxy_bypass(host):
        return None
    return urllib.request.getproxies().get(parts.scheme)


class Target:
    """Where requests of an endpoint go: the address, headers, timeouts and limiter that they share."""

    def __init__(
        self,
        endpoint: Endpoint,
        provider: Provider,
        url: str,
        headers: dict[str, str],
        redactor: Redactor,
        identity: tuple[Any, ...] = (),
        *,
        key: str | None = None,
        limiter: Limiter,
    ) -> None:
        self.key = key
        self.identity = identity
        self.limiter = limiter
        self._clock = limiter.clock
        self.endpoint = endpoint
        self.redactor = redactor
        self.provider = provider
        self.url = url
        self._parsed: str | URL = url
        with contextlib.suppress(ValueError):  # aiohttp reports an invalid address when it is used
            self._parsed = URL(url)
        self.headers = CIMultiDict(headers)
        self.proxy = proxy_for(url)
        times = endpoint.timeouts
        self.timeout = aiohttp.ClientTimeout(
            # `connect` includes the DNS lookup. It includes no wait for a free connection: their number is unlimited.
            total=times.total,
            connect=times.connect,
            sock_connect=times.connect,
            sock_read=times.read,
        )
        self.refusals = 0
        """The number of requests whose key was refused."""
        self.refusal: CredentialsRefused | None = None
        self._refused: asyncio.Future[None] | None = None

    async def post(
        self, session: aiohttp.ClientSession, body: bytes, arrivals: list[tuple[int, float]] | None = None
    ) -> tuple[bytes, CIMultiDictProxy[str]]:
        """Send a body and return the response body and headers; a status of 300 or more is a failure.

        For a stream, the number of bytes received and the time are appended to `arrivals` with each piece.
        """
        spec, times, headers = self.endpoint.spec, self.endpoint.timeouts, self.headers
        if self.provider.signs:
            headers = headers.copy()
            headers.update(self.provider.sign(self.url, dict(headers), body, self.key, self.endpoint))
        try:
            async with session.post(
                self._parsed,
                data=aiohttp.BytesPayload(body),
                headers=headers,
                timeout=self.timeout,
                allow_redirects=False,
                proxy=self.proxy,
            ) as response:
                if arrivals is None or response.status >= 300:
                    answer = await read_body(response, spec)
                else:
                    answer = await _read_stream(response, spec, arrivals)
        except aiohttp.ConnectionTimeoutError:
            late = TimedOut(f"{self._no_connection} within {times.connect:g} s")
            # As for a refused connection: nothing was sent that could be charged, so it is retried as often.
            late.most, late.charged, late.lost = ConnectionRefused.most, False, False
            raise late from None
        except (aiohttp.ServerTimeoutError, TimeoutError):
            raise TimedOut(
                f"{spec}: no response within the timeout (read {times.read:g} s, total {times.total:g} s)"
            ) from None
        except aiohttp.ClientSSLError as error:
            raise CertificateRejected(f"{self._no_connection}: {_encryption_problem(error)}") from None
        except (aiohttp.ClientConnectorError, aiohttp.InvalidURL) as error:
            raise ConnectionRefused(f"{self._no_connection}: {_reason(error)}") from None
        except aiohttp.ClientPayloadError:
            raise BrokenBody(f"{spec}: the response was cut short") from None
        except (aiohttp.ClientConnectionError, ConnectionError) as error:
            kind = one_line(self._without_secrets(error), 200) or type(error).__name__
            raise ConnectionDropped(f"{spec}: the connection ended before a response came: {kind}") from None
        except aiohttp.ClientError as error:
            raise BrokenBody(
                f"{spec}: not an HTTP response: {one_line(self._without_secrets(error), 200)}"
            ) from None
        if self.redactor:  # some servers return the key, and replies are stored
            answer = await beside(answer, self.redactor.in_bytes, answer)
        if response.status >= 300:
            failure = self._failure(response.status, answer, response.headers, body)
            if isinstance(failure, CredentialsRefused):
                self.refuse(failure)
            raise failure
        return answer, response.headers

    def _without_secrets(self, error: Exception) -> str:
        """Return the text of an error with secrets removed: a server may send the key back."""
        return self.redactor.in_text(str(error))

    def refuse(self, refusal: CredentialsRefused) -> None:
        """Note that the key was refused, and wake the requests that wait for a slot or a retry."""
        self.refusals += 1
        self.refusal = refusal
        if self._refused is not None:
            self._refused.set_result(None)
            self._refused = None

    def check(self, refusals: int) -> None:
        """Raise the latest refusal if there are more than `refusals` by now."""
        if self.refusals != refusals and self.refusal is not None:
            raise type(self.refusal)(str(self.refusal))

    async def sleep(self, seconds: float) -> None:
        """Sleep, or raise as soon as the key is refused."""
        if self._refused is None:
            self._refused = asyncio.get_running_loop().create_future()
        refusals, refused = self.refusals, self._refused
        sleeping = asyncio.ensure_future(self._clock.sleep(seconds))
        try:
            await asyncio.wait((sleeping, refused), return_when=asyncio.FIRST_COMPLETED)
        finally:
            sleeping.cancel()
        self.check(refusals)

    @property
    def _no_connection(self) -> str:
        """The beginning of a message about a failed connection, with the host unless the spec has it."""
        place, spec = urlsplit(self.url).netloc, self.endpoint.spec
        through = f" through the proxy {urlsplit(self.proxy).netloc.rpartition('@')[2]}" if self.proxy else ""
        return f"{spec}: no connection{'' if place in spec else f' to {place}'}{through}"

    def _redirection(self, location: str) -> str:
        """Return the target of a redirection without its query and password, which may be secret."""
        try:
            parts = urlsplit(urljoin(self.url, location))
        except ValueError:
            return "it redirects to an invalid address: correct base_url"
        where = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
        where = self.redactor.in_text(where)
        return f"it redirects to {one_line(where, 200)}, and redirects are not followed: set base_url to that address"

    def _failure(
        self, status: int, body: bytes, headers: CIMultiDictProxy[str], sent: bytes = b""
    ) -> Exception:
        raw = error_body(body)
        message, code = self.provider.error(raw)
        if 300 <= status < 400:
            message = self._redirection(headers.get("Location", ""))
        said = _content(sent) if status == 404 else ""
        if status == 404 and "requested parameters" in message and "requested parameters" not in said:
            # openrouter.ai/docs/features/provider-routing: no endpoint takes all parameters of the request.
            return ParameterRefused(
                f"{self.endpoint.spec} does not accept a parameter of this request: remove it ({message}, 404)"
            )
        named = _names_model(message, self.endpoint.model) and self.endpoint.model not in said
        if status == 404 and (code == "model_not_found" or named):
            # OpenAI and Anthropic, and servers that are compatible with them: every record would fail.
            return ParameterRefused(f"{self.endpoint.spec}: {message} (404): correct the name of the model")
        return failure_of(self.endpoint, status, message, code, headers, raw, sent)


def error_body(body: bytes) -> Any:
    """An error body: the JSON it is, else the beginning of its text. This is read on the event loop."""
    try:
        return msgspec.json.decode(body if len(body) < LARGE else b"")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return body[:4000].decode("utf-8", "replace")


def _names_model(message: str, model: str) -> bool:
    """Whether a message is about a model that does not exist."""
    return "model" in message.lower() and model in message


def _reason(error: Exception) -> str:
    """Explain why there is no connection, without the address that the message already contains."""
    cause = getattr(error, "os_error", None) or error
    number = re.search(r"\[Errno (\d+)\]", f"[Errno {getattr(cause, 'errno', None)}] {cause}")
    if number:
        return os.strerror(int(number[1]))
    return one_line(getattr(cause, "strerror", None) or str(cause), 200)


def _encryption_problem(error: aiohttp.ClientSSLError) -> str:
    """The problem that OpenSSL reports about the certificate or the encryption, and the fix."""
    cause = getattr(error, "certificate_error", None) or getattr(error, "os_error", None) or error
    reason = getattr(cause, "verify_message", None) or getattr(cause, "reason", None) or str(cause)
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return (
            f"its certificate is not accepted ({one_line(str(reason), 200)}):"
            " name the certificates to trust in SSL_CERT_FILE, or correct base_url"
        )
    return f"TLS failed ({one_line(str(reason), 200)}): check whether base_url has to start with http://"


async def read_body(response: aiohttp.ClientResponse, spec: str, limit: int | None = None) -> bytes:
    """Read and decompress a body; the limit applies to both sizes."""
    limit = limit or LARGEST_BODY
    length = response.content_length
    if length is not None and length <= limit:
        body = await response.read()
    else:
        parts, size = [], 0
        async for part in response.content.iter_any():
            size += len(part)
            if size > limit:
                raise too_large(spec, limit)
            parts.append(part)
        body = b"".join(parts)
    encoding = response.headers.get("Content-Encoding")
    if not encoding or not body:
        return body
    if len(body) < 1 << 16:  # it may be a thousand times larger
        return _decompress(body, encoding, spec, limit)
    return await asyncio.get_running_loop().run_in_executor(None, _decompress, body, encoding, spec, limit)


async def _read_stream(
    response: aiohttp.ClientResponse, spec: str, arrivals: list[tuple[int, float]]
) -> bytes:
    """Read the events of a stream, decompressed, and note when each piece arrived."""
    reader = _Decompressor(response.headers.get("Content-Encoding", ""), spec, LARGEST_BODY)
    parts, size, tail = [], 0, b"\n"
    async for received in response.content.iter_any():
        part = reader.read(received) if reader.encodings else received
        size += len(part)
        if size > LARGEST_BODY:
            raise too_large(spec, LARGEST_BODY)
        parts.append(part)
        arrivals.append((size, time.perf_counter()))
        tail = (tail + part)[-LONGEST_END:]
        if _END.search(tail):
            response.close()  # some servers keep the connection open after the end
            break
    else:
        reader.finish()
    return b"".join(parts)


LONGEST_END = 256
_END = re.compile(rb"\ndata: ?\[DONE\]\s|\nevent: ?message_stop\s+data:[^\n]*\n\s*\n")
"""The end of a stream of chat completions or of Anthropic's messages."""


_REFUSAL = re.compile(
    r"deprecated|(?:not|n't|un)[ -]?(?:supported|permitted|allowed|accepted|recognized|known|expected|possible)"
    r"|(?:does|do|can)(?: not|n't|not) (?:be |both be )?"
    r"(?:support|accept|allow|take|use|set|specified|combined|change|offer|have|provide)"
    r"|unsupported|unknown|unrecognized|only the default|extraneous|incompatible|not compatible|not available"
    r"|no longer|forbid|disabled|removed?\b|mutually exclusive|not (?:be )?(?:configurable|implemented|enabled)"
    r"|retired|turned off|switched off|ignores|is fixed|不支持|不允许|不能",
    re.IGNORECASE,
)
"""Words for a parameter that a model does not accept at all."""

_INVALID = re.compile(
    r"must|has to be|have to be|(?:may|can) only|only be set|should be|invalid|range|only [^ ]+ (?:is|are)"
    r"|is too (?:large|high|low)|(?:above|below|at) (?:the )?(?:max|min)imum|at most|at least|exceed"
    r"|(?:greater|less|larger|smaller|more) than|between|requires?\b|expected|one of"
    r"|only (?:supports?|accepts?|allows?)",
    re.IGNORECASE,
)
"""Words for a value that a parameter does not accept."""

_OWN_NAMES = {
    "max_completion_tokens": "max_tokens",
    "max_output_tokens": "max_tokens",
    "stop_sequences": "stop",
    "reasoning_effort": "effort",
    "reasoning": "effort",
    "output_config": "effort",
    "thinking": "effort",
    "random_seed": "seed",
    "top_logprobs": "logprobs",
}
"""karat's parameter for each field of a body that has another name."""

_NOT_PARAMETERS = {
    "model",
    "messages",
    "input",
    "system",
    "instructions",
    "stream",
    "stream_options",
    "store",
    "text",
}
_NOT_PARAMETERS |= {"response_format", "include"}  # the fix for these is structured: prompt


def refused_parameter(
    endpoint: Endpoint, raw: object, message: str, code: str, sent: bytes
) -> ParameterRefused | None:
    """Return the run's failure for a 400 that names a parameter of the request; None for any other 400.

    Every record sends the same parameters, so every record would fail in the same way. A message may quote the record:
    a name that its text contains too proves nothing, unless a field of the error has it.
    """
    content = _content(sent)
    if "/v1/responses" in message and "/v1/responses" not in content and endpoint.api != "responses":
        return ParameterRefused(f"{endpoint.spec}: {message} (400): set api: responses for this model")
    try:
        fields = msgspec.json.decode(sent, type=dict[str, object])
    except msgspec.DecodeError:
        return None
    if any(_begins_with(message, name) for name in _NOT_PARAMETERS):
        return None
    unsupported = bool(_REFUSAL.search(f"{message} {code.replace('_', ' ')}"))
    by_field = _named_field(raw)
    for name, value in fields.items():
        if name in _NOT_PARAMETERS:
            continue
        ours = _OWN_NAMES.get(name, name)
        if by_field:
            found = by_field == name
        else:
            about = unsupported or _INVALID.search(message) is not None
            found = _begins_with(message, name) or _mentions(message, name, any_wording=not about)
            other = _OTHER_NAMES.get(ours)
            if other is not None and (unsupported or _quotes(message, value)):
                found = found or other.search(message) is not None
            quoted = found and (_occurs(content, name) or (other is not None and other.search(content)))
            found = found and not quoted
        if found:
            what = f"{ours}: remove it" if unsupported else f"this {ours}: change it or remove it"
            return ParameterRefused(f"{endpoint.spec} does not accept {what} ({one_line(message, 300)}, 400)")
    return None


def _content(sent: bytes) -> str:
    """The texts of a request that belong to its record, which an error may quote."""
    try:
        fields = msgspec.json.decode(sent, type=dict[str, object])
    except msgspec.DecodeError:
        return ""
    waiting, texts = [fields[name] for name in _NOT_PARAMETERS - {"model"} if name in fields], []
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            texts.append(value)
        elif isinstance(value, dict):
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
    return "\n".join(texts)


def _occurs(content: str, name: str) -> bool:
    """Whether a text has the name of a field, as it is sent or as karat calls it, however it is written there."""
    names = "|".join(re.escape(each).replace("_", "[ _-]?") for each in (name, _OWN_NAMES.get(name, name)))
    return re.search(rf"(?<![\w.-])(?:{names})(?![\w-])", content, re.IGNORECASE | re.ASCII) is not None


def _named_field(raw: object) -> str:
    """The field of the request that an error names; empty without one.

    It is `param` of OpenAI, `loc` of FastAPI servers, `field` of Google's `fieldViolations` and of lists of errors.
    """
    if isinstance(raw, list) and raw:  # Gemini wraps its errors in a list
        raw = raw[0]
    if not isinstance(raw, dict):
        return ""
    error = raw.get("error")
    places = [error, *_dicts(raw.get("detail")), *_dicts(raw.get("errors"))]
    if isinstance(error, dict):
        places += [each for detail in _dicts(error.get("details")) for each in (detail, *_violations(detail))]
    for place in places:
        if not isinstance(place, dict):
            continue
        steps = place.get("loc")
        if isinstance(steps, list):
            return next((step for step in steps if isinstance(step, str) and step != "body"), "")
        for key in ("param", "field"):
            named = place.get(key)
            if isinstance(named, str) and named:
                # Google names the message that holds a field: generation_config.temperature
                return re.split(r"[.\[]", named.removeprefix("generation_config."))[0]
    return ""


def _codes(raw: object, code: str) -> set[str]:
    """The words for programs in an error body: its code and type, and the reasons of Google's details."""
    first = raw[0] if isinstance(raw, list) and raw else raw  # Gemini wraps its errors in a list
    error = first.get("error") if isinstance(first, dict) else None
    found: list[object] = [code]
    if isinstance(error, dict):
        found += [error.get("type"), *(each.get("reason") for each in _dicts(error.get("details")))]
    return {each for each in found if isinstance(each, str)}


def _dicts(value: object) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _violations(detail: dict[str, Any]) -> list[dict[str, Any]]:
    return _dicts(detail.get("fieldViolations") or detail.get("field_violations"))


def _begins_with(message: str, name: str) -> bool:
    """Whether a message is about a field, as Anthropic writes: `max_tokens: 100000 > 64000, which is …`."""
    return re.match(rf"[\s`'\"]*{re.escape(name)}[`'\"]*(?:\.[\w.]+)?\s*:", message) is not None


def _quotes(message: str, value: object) -> bool:
    """Whether a message quotes the value that was sent, as Ollama writes: `invalid reasoning value: "minimal"`."""
    return isinstance(value, str) and any(f"{mark}{value}{mark}" in message for mark in "`'\"")


_WORDS = frozenset(("n", "seed", "stop", "store", "thinking", "tools", "user"))
"""Names of fields that are words of many sentences: they count where the sentence calls them a field."""


def _mentions(message: str, name: str, any_wording: bool) -> bool:
    """Whether a message has the name of a field: as it is sent, in camel case or in words, or as karat calls it.

    With `any_wording` only as a name that is no word of a sentence: quoted, or with an underscore.
    """
    names = (name, _OWN_NAMES.get(name, name))
    for each in names:
        quoted = "[`'\"]" if "_" not in each and (any_wording or len(each) < 3) else ""
        # In any case: tool_choice, toolChoice, Tool Choice, tool-choice.
        word = re.escape(each).replace("_", "_" if any_wording else "[ _-]?")
        found = re.search(rf"(?<![\w.-]){quoted}{word}{quoted}(?![\w-])", message, re.IGNORECASE | re.ASCII)
        if found and (quoted or each not in _WORDS or _is_a_field(message, found.start(), found.end())):
            return True
    return False


_BEFORE_A_FIELD = re.compile(
    r"(?:[`'\"]|(?:param\w*|field|argument|option|property|setting)(?:\(s\))?\W*"
    r"|(?:support|accept|allow|ignor|use|set|unknown|permit)\w*:?\s+)$",
    re.IGNORECASE,
)
_AFTER_A_FIELD = re.compile(
    r"\s*[=:]|\s+(?:param|field|argument|option|property|setting|sequence|(?:is|are|may|not|must|cannot|can't)\b)",
    re.IGNORECASE,
)


def _is_a_field(message: str, start: int, end: int) -> bool:
    """Whether a word of a message is the name of a field, by its quotes or by the words beside it."""
    return bool(_BEFORE_A_FIELD.search(message[:start]) or _AFTER_A_FIELD.match(message[end:]))


_OTHER_NAMES = {
    "effort": re.compile(r"\b(?:thinking|reasoning)\b(?! models?\b)", re.IGNORECASE),
    "temperature": re.compile(r"\bsampling (?:parameter|setting|option)s?\b", re.IGNORECASE),
    "tools": re.compile(r"\b(?:tool|function)[ -](?:call|use|calling)\b", re.IGNORECASE),
    "top_p": re.compile(r"\bsampling (?:parameter|setting|option)s?\b", re.IGNORECASE),
    "logprobs": re.compile(r"\blog[ -]?prob(?:s|abilities)\b", re.IGNORECASE),
}
"""Words for karat's parameters in sentences of providers; they count where something is said to be
unsupported, or where the value that was sent is quoted."""


def _decompress(body: bytes, encodings: str, spec: str, limit: int) -> bytes:
    reader = _Decompressor(encodings, spec, limit)
    out = reader.read(body)
    reader.finish()
    return out


_OTHER_ENCODINGS = ("aes128gcm", "br", "compress", "dcb", "dcz", "exi", "pack200-gzip", "x-compress", "zstd")
"""Those of iana.org/assignments/http-parameters that were not asked for."""


class _Decompressor:
    """Decompression of a body, whole or piece by piece, up to a limit."""

    def __init__(self, encodings: str, spec: str, limit: int) -> None:
        names = [each.strip().lower() for each in encodings.split(",")]
        self.encodings = [each for each in reversed(names) if each not in ("", "identity")]
        """The encodings to undo, the last one first."""
        self._spec, self._limit = spec, limit
        self._readers: list[Any] = [None] * len(self.encodings)
        for encoding in self.encodings:
            if encoding not in ("gzip", "x-gzip", "deflate"):
                # An unknown word is not repeated: a server may return the key there too.
                how = f"with {encoding!r}" if encoding in _OTHER_ENCODINGS else "in an unknown way"
                failure = BrokenBody(f"{spec}: the response is compressed {how}, not with gzip")
                failure.most = 0  # no retry: it would be compressed in the same way
                raise failure

    def read(self, data: bytes) -> bytes:
        """Return the content of the next piece."""
        for at in range(len(self.encodings)):
            data = self._undo(at, data)
        return data

    def _undo(self, at: int, data: bytes) -> bytes:
        out, size = [], 0
        while data:
            reader = self._readers[at]
            if reader is None or reader.eof:  # RFC 1952: a gzip body may have several members
                reader = self._readers[at] = self._new(self.encodings[at], data)
            try:
                piece = reader.decompress(data, self._limit - size + 1)
            except zlib.error as error:
                raise BrokenBody(f"{self._spec}: the response cannot be decompressed: {error}") from None
            size += len(piece)
            if size > self._limit:
                raise too_large(self._spec, self._limit)
            out.append(piece)
            data = reader.unused_data if reader.eof else b""
            if reader.eof and (self.encodings[at] == "deflate" or not data.startswith(b"\x1f")):
                break  # what follows is padding
        return b"".join(out)

    @staticmethod
    def _new(encoding: str, data: bytes) -> Any:
        # In RFC 9110 deflate is the zlib format; some servers send it without the zlib header.
        raw = encoding == "deflate" and (data[0] & 0x0F) != 8
        return zlib.decompressobj(-zlib.MAX_WBITS if raw else 32 + zlib.MAX_WBITS)

    def finish(self) -> None:
        """Raise if the last piece is missing."""
        if any(reader is not None and not reader.eof for reader in self._readers):
            raise BrokenBody(f"{self._spec}: the response was cut short")


def too_large(spec: str, limit: int) -> BrokenBody:
    """The failure for a response that is larger than a limit."""
    failure = BrokenBody(f"{spec}: the response is larger than {limit >> 20} MB")
    failure.most = 0  # no retry: it would be as large
    return failure


def failure_of(
    endpoint: Endpoint,
    status: int,
    message: str,
    code: str,
    headers: Mapping[str, str],
    raw: object = None,
    sent: bytes = b"",
) -> Exception:
    """Return the failure for an HTTP status and an error body; `sent` is the body of the request."""
    text = f"{endpoint.spec}: {message or code or 'no reason given'} ({status})"
    lowered = f"{code} {message}".lower()
    # What is too long or withheld is about one record, not about a parameter of every request.
    if status in (400, 422) and sent and not any(sign in lowered for sign in (*_TOO_LONG, *_WITHHELD[:4])):
        refused = refused_parameter(endpoint, raw, message, code, sent)
        if refused is not None:
            return refused
    codes = _codes(raw, code)
    if "insufficient_quota" in codes or status == 402:
        return QuotaExhausted(f"{text}: add credit, then repeat the command to continue")
    if status == 403 and any(sign in lowered for sign in _WITHHELD):
        return ContentFiltered(text, status=status)
    if status in (401, 403) or "API_KEY_INVALID" in codes:  # with which Gemini answers 400
        return CredentialsRefused(
            f"{text}: the key was refused; {_where_the_key_is_set(endpoint)}, then repeat the command to continue"
        )
    if status == 500 and provider_of(endpoint).repeatable:
        return BadRequest(text, status=status)
    if status in (408, 409, 429) or status >= 500:
        wait, longest = requested_wait(headers), endpoint.retries.longest_wait
        if wait is not None and wait > longest:
            text += f": it asks for a wait of {wait:g} s, and longest_wait allows {longest:g} s"
        return (RateLimited if status == 429 else ServerFailed)(text, status=status, wait=wait)
    kind: type[ModelFailure] = BadRequest
    if status in (400, 413, 422):
        if any(sign in lowered for sign in _TOO_LONG):
            kind = ContextTooLong
        elif any(sign in lowered for sign in _WITHHELD[:4]):
            kind = ContentFiltered
        elif endpoint.structured == "native" and ("response_format" in lowered or "json_schema" in lowered):
            text += "; structured: prompt in models.yaml asks for the form in words instead"
    return kind(text, status=status)


def _where_the_key_is_set(endpoint: Endpoint) -> str:
    """Say how to set the key of a model."""
    if endpoint.key_command:
        return "correct api_key_command in models.yaml, which printed it"
    if endpoint.key_env:
        return f"set {endpoint.key_env}"
    if "@http" in endpoint.spec:
        return "define this model in models.yaml (model, base_url) and name its key's variable as api_key_env"
    return "name its key's variable as api_key_env in models.yaml"
