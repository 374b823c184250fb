"""The routes of the page: its files, and the data below /api/."""

from collections.abc import Callable
from http import HTTPStatus
from importlib.resources import files
from typing import Any, Final, TypeVar

from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kvstore import __version__
from kvstore_client.errors import LeaseNotFound, NamespaceNotFound, StoreError
from kvstore_ctl.page.snapshot_json import holds_json, state_json
from kvstore_ctl.page.store_feed import Feed
from kvstore_ctl.page.tree_outline import Entry

TYPES: Final = {
    "css": "text/css",
    "html": "text/html",
    "js": "text/javascript",
    "svg": "image/svg+xml",
}
INDEX: Final = "index.html"
# A page of another site can have a browser connect to 127.0.0.1 under a name of that site (DNS
# rebinding), and read the answers. The browser then sends that name as Host.
HOSTS: Final = ("localhost", "127.0.0.1", "[::1]", "::1")
# The browser loads only this server's files and data, and never makes code of text. No other
# site's page shows or reads them, and nothing is stored.
HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'none'; "
    "object-src 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
# Nodes in one answer.
DEFAULT_NODES, MAX_NODES = 60, 400
# Larger than any number of a node, and still an integer to a browser and to numpy.
LARGEST_NUMBER: Final = (1 << 53) - 1
MAX_DIGITS: Final = 16
T = TypeVar("T")


class PageSite:
    """The handlers of the page, over a feed. Thread-safe."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed

    def app(self) -> Starlette:
        """Returns the application: all routes, for this host's browsers alone."""
        routes = [
            *(Route(path, handler) for path, handler in file_handlers().items()),
            Route("/api/state", self._state),
            Route("/api/history", self._samples),
            Route("/api/tree", self._tree),
            Route("/api/holds", self._holds),
        ]
        guards = [
            Middleware(Guarded),
            Middleware(TrustedHostMiddleware, allowed_hosts=HOSTS, www_redirect=False),
        ]
        return Starlette(routes=routes, middleware=guards, exception_handlers={StoreError: _failed})

    def _state(self, request: Request) -> Response:
        _require_known(request)
        state = state_json(self._feed.snapshot())
        return JSONResponse(
            {"version": __version__, "shows_tokens": self._feed.shows_tokens} | state
        )

    def _samples(self, request: Request) -> Response:
        _require_known(request, "after")
        return JSONResponse(self._feed.history.since(_number(request, "after", default=-1)))

    def _tree(self, request: Request) -> Response:
        _require_known(request, "namespace", "node", "skip", "count")
        found = self._feed.snapshot().namespace(_number(request, "namespace"))
        namespace = _require_found(found, "no such namespace")
        try:
            tree = self._feed.tree(namespace)
        except NamespaceNotFound:
            raise HTTPException(HTTPStatus.NOT_FOUND, "the namespace was deleted") from None
        part = tree.outline.part(
            _number(request, "node", default=0),
            count=_number(request, "count", default=DEFAULT_NODES, most=MAX_NODES),
            skip=_number(request, "skip", default=0),
        )
        entry = _require_found(part, "no such node: it was evicted, or never existed")
        for each in _nodes_of(entry):
            if tokens := tree.first_tokens(each["id"]):
                each["ids"] = tokens
        return JSONResponse({"nodes": len(tree.outline), "node": entry})

    def _holds(self, request: Request) -> Response:
        _require_known(request, "lease")
        snapshot = self._feed.snapshot()
        lease = _require_found(snapshot.lease(_number(request, "lease")), "no such lease")
        try:
            holds = self._feed.holds(lease)
        except LeaseNotFound:
            raise HTTPException(HTTPStatus.NOT_FOUND, "the lease ended") from None
        return JSONResponse(holds_json(holds, snapshot.namespaces))


class Guarded:
    """Middleware that adds :data:`HEADERS` to every response, errors included."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one request."""

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        await self._app(scope, receive, send_guarded)


def file_handlers() -> dict[str, Callable[[Request], Response]]:
    """Returns a handler for each file of the page, and for ``/``. Each file is read once."""
    handlers = {}
    for each in (files("kvstore_ctl.page") / "static").iterdir():
        kind = TYPES[each.name.rpartition(".")[2]]
        handlers[f"/{each.name}"] = _file_handler(each.read_bytes(), kind)
    return handlers | {"/": handlers[f"/{INDEX}"]}


def _file_handler(body: bytes, kind: str) -> Callable[[Request], Response]:
    def handle(request: Request) -> Response:
        del request
        return Response(body, media_type=kind)

    return handle


def _failed(request: Request, error: Exception) -> Response:
    """Answers for a store that failed: the page keeps what it shows, and asks again."""
    del request
    return PlainTextResponse(str(error), HTTPStatus.SERVICE_UNAVAILABLE)


def _nodes_of(entry: Entry) -> list[Entry]:
    """Returns an entry and all entries below it."""
    found: list[Entry] = []
    todo: list[Any] = [entry]
    while todo:
        found.append(each := todo.pop())
        todo += each["children"]
    return found


def _require_found(found: T | None, otherwise: str) -> T:
    if found is None:
        raise HTTPException(HTTPStatus.NOT_FOUND, otherwise)
    return found


def _require_known(request: Request, *names: str) -> None:
    """Raises HTTPException for a field of the query that is unknown or comes twice."""
    given = [name for name, _ in request.query_params.multi_items()]
    if len(set(given)) < len(given) or set(given) - set(names):
        raise HTTPException(HTTPStatus.BAD_REQUEST, "a field is unknown, or comes twice")


def _number(
    request: Request, name: str, *, default: int | None = None, most: int = LARGEST_NUMBER
) -> int:
    """Returns a field of the query, at most ``most``; raises HTTPException if it is no number."""
    text = request.query_params.get(name, "")
    if not text and default is not None:
        return default
    if not (text.isascii() and text.isdecimal()) or len(text) > MAX_DIGITS:
        raise HTTPException(HTTPStatus.BAD_REQUEST, f"{name} has to be a number")
    return min(int(text), most)
