"""An HTTP request as its route sees it, and the parser of its head."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from http.client import HTTPException, parse_headers
from io import BytesIO
from typing import NoReturn
from urllib.parse import parse_qs, unquote

METHODS = ("GET", "HEAD")
MAX_HEAD_BYTES = 8 << 10
MAX_QUERY_FIELDS = 16
END_OF_HEAD = b"\r\n\r\n"
REQUEST_LINE = re.compile(r"([A-Z]{1,16}) (/[!-~]*) HTTP/1\.[01]")


class Refused(Exception):
    """A request that the listener answers itself, with an error status."""

    def __init__(
        self, status: HTTPStatus, why: str, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(why)
        self.status = status
        self.why = why
        self.headers = dict(headers or {})


@dataclass(frozen=True)
class Request:
    """A GET, or a HEAD, which is answered as a GET without a body.

    ``path`` is decoded and without the query. ``query`` has each field's values in their order.
    Names of ``headers`` are in lower case.
    """

    method: str
    path: str
    query: Mapping[str, list[str]] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)


def parse_request(head: bytes) -> Request:
    """Returns the request in a head, which ends with an empty line.

    Raises :class:`Refused` for a malformed request, another method, or a body.
    """
    line, _, rest = head.partition(b"\r\n")
    found = REQUEST_LINE.fullmatch(line.decode("latin-1"))
    if found is None:
        _refuse("not a request of HTTP/1.1 with a path")
    method, target = found.groups()
    if method not in METHODS:
        allowed = {"Allow": ", ".join(METHODS)}
        raise Refused(HTTPStatus.METHOD_NOT_ALLOWED, "GET and HEAD alone", allowed)
    headers = _headers(rest)
    if "transfer-encoding" in headers or headers.get("content-length", "0") != "0":
        _refuse("a request here has no body")
    try:
        path, _, fields = target.partition("?")
        path = unquote(path, errors="strict")
        query = parse_qs(fields, keep_blank_values=True, max_num_fields=MAX_QUERY_FIELDS)
    except ValueError:
        _refuse("not a path and a query")
    return Request(method, path, query, headers)


def _headers(head: bytes) -> dict[str, str]:
    try:
        message = parse_headers(BytesIO(head))
    except HTTPException:
        _refuse("too many headers")
    if message.defects or len(message.get_all("host", [])) != 1:
        _refuse("a request has headers, and one Host")
    return {name.lower(): str(value) for name, value in message.items()}


def _refuse(why: str) -> NoReturn:
    raise Refused(HTTPStatus.BAD_REQUEST, why)
