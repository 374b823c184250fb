"""The page's own files, which the package carries: read once, and named one by one."""

from collections.abc import Iterator
from importlib.resources import files
from typing import Final

from kvstore.http.connection import Route
from kvstore.http.request import Request
from kvstore.http.response import Response

TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
INDEX: Final = "index.html"
# Scripts, styles and data are the server's own and no other's, and text is never made code.
HEADERS: Final = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'none'; "
    "object-src 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "X-Frame-Options": "DENY",
}


def file_routes() -> dict[str, Route]:
    """Returns a route for each file, and for ``/``."""
    routes = dict(_routes())
    routes["/"] = routes[f"/{INDEX}"]
    return routes


def _routes() -> Iterator[tuple[str, Route]]:
    for each in (files("kvstore.page") / "static").iterdir():
        kind = TYPES[f".{each.name.rpartition('.')[2]}"]
        yield f"/{each.name}", _route(Response(each.read_bytes(), kind, headers=HEADERS))


def _route(response: Response) -> Route:
    def answer(request: Request) -> Response:
        del request
        return response

    return answer
