"""The server of `karat view`: who may ask, what is answered with which headers, and which function answers.

It listens on 127.0.0.1. Other programs of this machine, and pages of other sites in the user's browser, can send
requests there too, so every request has to name the exact host (against DNS rebinding), to come from no other origin,
and to carry the cookie that the token of the printed URL was exchanged for.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import html
import logging
import secrets
import threading
import time
from collections.abc import Awaitable, Callable
from importlib import resources
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlencode

import msgspec
from aiohttp import web

from karat.errors import KaratError, Stopped, StoreRefused, TookTooLong, UnknownName
from karat.store.sql import time_limit
from karat.view import Download
from karat.view.column_builds import NotBuiltYet

if TYPE_CHECKING:
    from karat.view.data import Viewer

HOST = "127.0.0.1"
SECONDS = 30.0
"""How long an answer may take."""
GRACE = 1.0
"""How much longer a request waits for its thread to notice that the time has passed."""
MOST_CONNECTIONS = 100
"""Connections that are open at the same time."""
IDLE_SECONDS = 75.0
"""How long a connection without a request stays open."""
AT_ONCE = 4
"""Answers that are computed at the same time."""

POLICY = "; ".join(
    (
        "default-src 'none'",
        *("script-src 'self'", "style-src 'self'", "img-src 'self'", "connect-src 'self'"),
        *("base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'"),
        *("require-trusted-types-for 'script'", "trusted-types 'none'"),
    )
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Frame-Options": "DENY",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), usb=()",
    "Server": "viewer",
}
"""Of every answer. Without a `Server`, aiohttp names its version and Python's."""

TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".ico": "image/x-icon",
    ".json": "application/json",
    ".txt": "text/plain; charset=utf-8",
    ".woff2": "font/woff2",
}
"""Kinds of static files; a file of another kind is not served."""

PAGES = ("/", "/r/{run}", "/c/{pair}", "/s/{runs}", "/f/{run}", "/p/{runs}")
NO_PAGES = (
    b'<!doctype html><html lang="en"><meta charset="utf-8"><title>karat</title>'
    b"<p>The pages of the viewer are not installed; the JSON API answers under /api/.</p></html>"
)

MAPPED_BYTES = 1 << 20
"""Memory from this size on is returned to the system when it is freed."""

LONG_SECONDS = 0.2
"""Answers that took longer have used much memory: what is free is returned at once."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


logger = logging.getLogger(__name__)


def return_memory() -> None:
    """Make the C library return large arrays to the system when they are freed, and share one heap between threads.

    By default glibc keeps what was freed once for later, and in each thread for itself, which leaves a viewer of a
    million rows with a hundred megabytes that it does not use.
    """
    import ctypes

    try:
        library = ctypes.CDLL(None)
        library.mallopt(-3, MAPPED_BYTES)  # M_MMAP_THRESHOLD
        library.mallopt(-8, 1)  # M_ARENA_MAX
    except (OSError, AttributeError, TypeError):
        return  # another C library


def trim_memory() -> None:
    """Return what is free at the end of the heap, which the records of a large answer may have enlarged."""
    import ctypes

    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError, TypeError):
        return  # another C library


class Connection(web.RequestHandler):
    """A connection that answers what is not HTTP with the same headers as everything else, and without echoing it."""

    __slots__ = ("_asked", "_open")

    def __init__(self, manager: web.Server, *, open: dict[Connection, None], **options: Any) -> None:
        """`open` are the connections of the server, oldest first."""
        super().__init__(manager, **options)
        self._open = open
        self._asked = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Make room for a new connection: one that has not asked for anything yet is closed first."""
        super().connection_made(transport)
        if len(self._open) >= MOST_CONNECTIONS:
            silent = next((each for each in self._open if not each._asked), self)
            if silent.transport is not None:
                silent.transport.abort()
            self._open.pop(silent, None)
            if silent is self:
                return
        self._open[self] = None

    def connection_lost(self, exc: BaseException | None) -> None:
        """Forget the connection."""
        self._open.pop(self, None)
        super().connection_lost(exc)

    def asked(self) -> None:
        """Note that it has sent a whole request with the cookie or the token."""
        self._asked = True

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer a request that cannot be parsed, or one that failed outside of the application."""
        logger.debug("cannot answer a request", exc_info=exc)
        if request.writer.output_size > 0:
            raise ConnectionError("a part of the response was already sent")
        answer = _error(status, "the request cannot be read" if status < 500 else "the viewer failed")
        _add_headers(answer)
        answer.force_close()
        return answer


class StaticFile(msgspec.Struct, frozen=True):
    """A file of the front end, in memory."""

    body: bytes
    type: str
    tag: str


def static_files() -> dict[str, StaticFile]:
    """The files of the front end by the path they are served under: the only ones that can be asked for."""
    found: dict[str, StaticFile] = {}

    def walk(folder: Any, prefix: str) -> None:
        for each in sorted(folder.iterdir(), key=lambda entry: entry.name):
            if each.is_dir():
                walk(each, f"{prefix}{each.name}/")
            else:
                type_ = TYPES.get(f".{each.name.rpartition('.')[2]}")
                if type_ is not None:
                    body = each.read_bytes()
                    tag = hashlib.blake2b(body, digest_size=12).hexdigest()
                    found[f"{prefix}{each.name}"] = StaticFile(body, type_, f'"{tag}"')

    folder = resources.files("karat.view").joinpath("static")
    if folder.is_dir():
        walk(folder, "")
        # The colours and the plots are those of HTML reports.
        theme = resources.files("karat.reporting").joinpath("theme.css").read_bytes()
        tag = hashlib.blake2b(theme, digest_size=12).hexdigest()
        found["theme.css"] = StaticFile(theme, TYPES[".css"], f'"{tag}"')
    return found


class Server:
    """The application, with the token and the address that it answers to."""

    def __init__(self, viewer: Callable[[], Viewer], *, token: str | None = None) -> None:
        """`viewer` makes what answers; it is called in a thread once the server listens, because it loads NumPy."""
        self._make_viewer = viewer
        self._viewer: Viewer | None = None
        self._making = threading.Lock()
        self.token = token or secrets.token_urlsafe(24)
        self._session = secrets.token_urlsafe(24)
        self.port = 0
        self.files = static_files()
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._runner: web.AppRunner | None = None
        self._listener: asyncio.Server | None = None

    @property
    def viewer(self) -> Viewer:
        """The source of the answers."""
        with self._making:
            if self._viewer is None:
                self._viewer = self._make_viewer()
            return self._viewer

    @property
    def address(self) -> str:
        """The host and port that requests have to name."""
        return f"{HOST}:{self.port}"

    @property
    def cookie(self) -> str:
        """The cookie's name. Cookies are shared by all ports of a host, so the port is in it."""
        return f"karat_view_{self.port}"

    def url(self, path: str = "/", **query: str) -> str:
        """A URL that opens a page, with the token."""
        return f"http://{self.address}{path}?{urlencode({**query, 'token': self.token})}"

    async def start(self, port: int = 0) -> None:
        """Listen; on a free port unless one is given."""
        app = web.Application(middlewares=[self._guard], client_max_size=1024)
        app.on_response_prepare.append(_prepare)
        add = app.router.add_get
        for page in PAGES:
            add(page, self._page)
        add("/static/{path:.+}", self._static)
        self._api(app, "/api/runs", lambda r: self.viewer.runs(_whole(r, "limit", 200, 1000)))
        self._api(app, "/api/changes", lambda r: self.viewer.changes())
        self._api(app, "/api/r/{run}", lambda r: self.viewer.run(_run(r)))
        self._api(app, "/api/r/{run}/rows", lambda r: self.viewer.rows(_run(r), **_paging(r)))
        self._api(app, "/api/r/{run}/item", lambda r: self.viewer.item(_run(r), _needed(r, "key")))
        self._api(
            app,
            "/api/r/{run}/steps",
            lambda r: self.viewer.steps(
                _run(r), _needed(r, "key"), _whole(r, "start", 0), _whole(r, "count", 200, 500)
            ),
        )
        self._api(
            app,
            "/api/r/{run}/field",
            lambda r: self.viewer.field(_run(r), _needed(r, "key"), _needed(r, "name")),
        )
        self._api(app, "/api/c/{pair}", lambda r: self.viewer.comparison(*_pair(r), r.query.get("evaluator")))
        self._api(app, "/api/c/{pair}/differences", lambda r: self.viewer.differences(*_pair(r)))
        self._api(
            app,
            "/api/c/{pair}/rows",
            lambda r: self.viewer.compared_rows(*_pair(r), r.query.get("evaluator"), **_paging(r)),
        )
        self._api(
            app,
            "/api/c/{pair}/item",
            lambda r: self.viewer.compared_item(*_pair(r), _needed(r, "key"), r.query.get("evaluator")),
        )
        self._api(
            app,
            "/api/s",
            lambda r: self.viewer.slices(_names(r), r.query.get("by"), r.query.get("evaluator")),
        )
        self._api(app, "/api/f/{run}", lambda r: self.viewer.failures(_run(r)))
        self._api(app, "/api/p", lambda r: self.viewer.performance(_names(r), r.query.get("evaluator")))
        return_memory()
        self._runner = web.AppRunner(app, access_log=None, handle_signals=False)
        connections: dict[Connection, None] = {}
        await self._runner.setup()
        server, loop = self._runner.server, asyncio.get_running_loop()
        assert server is not None
        no_log: Any = None
        self._listener = await loop.create_server(
            lambda: Connection(
                server, open=connections, loop=loop, access_log=no_log, keepalive_timeout=IDLE_SECONDS
            ),
            HOST,
            port,
            backlog=64,
        )
        self.port = int(self.addresses[0][1])
        self._loading = loop.run_in_executor(None, lambda: self.viewer)

    @property
    def addresses(self) -> list[Any]:
        """The addresses that it listens on."""
        return [] if self._listener is None else [each.getsockname() for each in self._listener.sockets]

    async def stop(self) -> None:
        """Stop listening and close the connections to the store."""
        if self._listener is not None:
            self._listener.close()
        if self._runner is not None:
            await self._runner.cleanup()
        if self._viewer is not None:
            self._viewer.close()

    # Who may ask ---------------------------------------------------------------------

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Refuse what is not the user's own browser, and answer a failure in the form of every other error."""
        try:
            refused = self._refusal(request)
            if refused is None and isinstance(request.protocol, Connection):
                request.protocol.asked()
            return await handler(request) if refused is None else refused
        except web.HTTPException as error:
            answer = _error(error.status, error.reason)
            if error.status == 405:
                answer.headers["Allow"] = "GET, HEAD"
            return answer
        except Exception as error:
            logger.exception("the viewer failed to answer %s", request.path)
            return _error(500, f"the viewer failed: {type(error).__name__}")

    def _refusal(self, request: web.Request) -> web.StreamResponse | None:
        hosts = request.headers.getall("Host", [])
        # A target that is a whole URL names a host of its own, which counts instead of `Host`.
        if hosts != [self.address] or not request.raw_path.startswith("/"):
            return _error(421, f"this server answers to {self.address} only")
        if request.method not in ("GET", "HEAD"):
            answer = _error(405, "only GET and HEAD are allowed")
            answer.headers["Allow"] = "GET, HEAD"
            return answer
        origins = request.headers.getall("Origin", [])
        if any(origin != f"http://{self.address}" for origin in origins):
            return _error(403, "requests of other origins are not answered")
        opens = self._opens(request)
        sites = request.headers.getall("Sec-Fetch-Site", [])
        if any(site not in ("same-origin", "none") for site in sites) and not opens:
            return _error(403, "requests of other sites are not answered")
        known = request.cookies.get(self.cookie, "")
        if opens or _same(known, self._session):
            return None
        return _error(401, "open the URL that karat view printed: this one lacks its token")

    def _opens(self, request: web.Request) -> bool:
        """Whether a request is the navigation of a browser to a page, with the token."""
        given = request.query.get("token", "")
        return (
            not request.path.startswith(("/api/", "/static/"))
            and request.headers.get("Sec-Fetch-Dest", "document") == "document"
            and _same(given, self.token)
        )

    # What is answered ----------------------------------------------------------------

    async def _page(self, request: web.Request) -> web.StreamResponse:
        if "token" in request.query:
            return self._signed_in(request)
        page = self.files.get("index.html")
        return web.Response(
            body=NO_PAGES if page is None else page.body, headers={"Content-Type": TYPES[".html"]}
        )

    def _signed_in(self, request: web.Request) -> web.Response:
        """Exchange the token for the cookie, and go on to the page without it.

        Not a redirect: a browser that followed a link of another program would not send a SameSite=Strict cookie
        along with the redirected request.
        """
        rest = [(name, value) for name, value in request.query.items() if name != "token"]
        target = request.rel_url.raw_path + (f"?{urlencode(rest)}" if rest else "")
        text = (
            '<!doctype html><html lang="en"><meta charset="utf-8"><title>karat</title>'
            '<link rel="icon" href="/static/icon.svg">'
            f'<meta http-equiv="refresh" content="0; url={html.escape(target, quote=True)}">'
            f'<p><a href="{html.escape(target, quote=True)}">Open the viewer</a></p></html>'
        )
        answer = web.Response(text=text, content_type="text/html", charset="utf-8")
        answer.set_cookie(self.cookie, self._session, httponly=True, samesite="Strict", path="/")
        return answer

    async def _static(self, request: web.Request) -> web.StreamResponse:
        # The raw path: a percent sign, a dot or a backslash in it is not decoded into a name of the table.
        name = request.rel_url.raw_path.removeprefix("/static/")
        file = self.files.get(name)
        if file is None:
            return _error(404, "there is no such file")
        headers = {"Content-Type": file.type, "Cache-Control": "no-cache", "ETag": file.tag}
        if request.headers.get("If-None-Match") == file.tag:
            return web.Response(status=304, headers=headers)
        return web.Response(body=file.body, headers=headers)

    def _api(self, app: web.Application, path: str, answer: Callable[[web.Request], Any]) -> None:
        async def handle(request: web.Request) -> web.StreamResponse:
            try:
                found = await self._computed(answer, request)
            except NotBuiltYet as error:
                return _error(202, str(error), building=error.building)
            except TookTooLong as error:
                return _error(503, str(error))
            except UnknownName as error:
                return _error(404, str(error))
            except (Stopped, StoreRefused) as error:  # the store cannot be read now
                return _error(503, str(error))
            except KaratError as error:
                return _error(400, str(error))
            except msgspec.MsgspecError as error:  # a header or a record that is not of its type
                return _error(
                    503, f"a record of the store cannot be read: {error}; karat doctor checks the store"
                )
            if isinstance(found, Download):
                return web.Response(
                    body=found.body,
                    headers={
                        "Content-Type": found.type,
                        "Content-Disposition": f'attachment; filename="{found.name}"',
                    },
                )
            return web.Response(
                body=msgspec.json.encode(found), content_type="application/json", charset="utf-8"
            )

        app.router.add_get(path, handle)

    async def _computed(self, answer: Callable[[web.Request], Any], request: web.Request) -> Any:
        """Compute an answer in a thread, and give it up when the time has passed.

        Reads and loops stop by themselves then; a single operation on a large array ends first. Its thread keeps its
        slot until then, so that there are never more of them than slots.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + SECONDS + GRACE
        try:
            async with asyncio.timeout_at(end):
                await self._slots.acquire()
        except TimeoutError:
            raise TookTooLong("the viewer is busy: try again later") from None
        work = asyncio.ensure_future(asyncio.to_thread(_limited, answer, request))
        work.add_done_callback(self._release)
        done, _ = await asyncio.wait({work}, timeout=end - loop.time())
        if not done:
            raise TookTooLong("the request timed out: narrow it")
        return work.result()

    def _release(self, work: asyncio.Future[Any]) -> None:
        self._slots.release()
        if not work.cancelled():
            work.exception()  # of an abandoned answer: nothing else reads it


def _limited(answer: Callable[[web.Request], Any], request: web.Request) -> Any:
    start = time.monotonic()
    try:
        with time_limit(SECONDS):
            return answer(request)
    finally:
        if time.monotonic() - start > LONG_SECONDS:
            trim_memory()


def _same(given: str, secret: str) -> bool:
    """Compare a text with the secret in constant time. Bytes that are not UTF-8 come as surrogates."""
    return hmac.compare_digest(given.encode("utf-8", "surrogatepass"), secret.encode())


def _add_headers(answer: web.StreamResponse) -> None:
    for name, value in HEADERS.items():
        answer.headers[name] = value
    answer.headers.setdefault("Cache-Control", "no-store")


async def _prepare(request: web.Request, answer: web.StreamResponse) -> None:
    """Add the headers to every answer, those that aiohttp makes itself too."""
    _add_headers(answer)


def _error(status: int, reason: str, **more: Any) -> web.Response:
    body = msgspec.json.encode({"error": reason, **more})
    return web.Response(status=status, body=body, content_type="application/json", charset="utf-8")


class BadParameter(KaratError):
    """A parameter of a request that cannot be used."""


def _run(request: web.Request) -> str:
    return request.match_info["run"]


def _pair(request: web.Request) -> tuple[str, str]:
    first, separator, second = request.match_info["pair"].partition("..")
    if not separator or not first or not second:
        raise BadParameter("a comparison needs two runs: /c/FIRST..SECOND")
    return first, second


def _names(request: web.Request) -> list[str]:
    names = [unquote(name) for name in request.query.get("runs", "").split(",") if name]
    if not 1 <= len(names) <= 50:
        raise BadParameter("name 1 to 50 runs: runs=RUN,RUN")
    return names


def _needed(request: web.Request, name: str) -> str:
    value = request.query.get(name)
    if not value:
        raise BadParameter(f"the parameter {name} is missing")
    return value


def _whole(request: web.Request, name: str, default: int, most: int | None = None) -> int:
    text = request.query.get(name, "")
    if not text:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        raise BadParameter(f"{name} is {text[:40]!r}: give a whole number")
    return int(text) if most is None else min(int(text), most)


def _paging(request: web.Request) -> dict[str, Any]:
    return {
        "start": _whole(request, "start", 0),
        "count": _whole(request, "count", 100, 500),
        "where": request.query.get("filter", ""),
        "sort": request.query.get("sort", ""),
        "around": request.query.get("around") or None,
        "example": request.query.get("id") or None,
    }
