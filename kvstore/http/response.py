"""An HTTP response, and its bytes."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Self

TEXT = "text/plain; charset=utf-8"
JSON = "application/json"
# Defaults for browsers; a route's own headers win. They forbid loading from elsewhere, caching, and
# use by pages of other sites.
DEFAULTS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


@dataclass(frozen=True)
class Response:
    """A route's response. Names and values of ``headers`` are printable ASCII."""

    body: bytes
    content_type: str = TEXT
    status: HTTPStatus = HTTPStatus.OK
    headers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def text(cls, text: str, status: HTTPStatus = HTTPStatus.OK) -> Self:
        """Returns a line of text."""
        return cls(f"{text}\n".encode(), status=status)

    @classmethod
    def json(cls, value: object) -> Self:
        """Returns a value as JSON."""
        return cls(json.dumps(value, separators=(",", ":")).encode(), JSON)

    def to_bytes(self, *, with_body: bool = True) -> bytes:
        """Returns the whole response, without a body for a HEAD."""
        fields = {
            **DEFAULTS,
            **self.headers,
            "Content-Type": self.content_type,
            "Content-Length": str(len(self.body)),
            "Connection": "close",
        }
        lines = [f"HTTP/1.1 {self.status.value} {self.status.phrase}"]
        lines += [f"{name}: {value}" for name, value in fields.items()]
        assert all(line.isascii() and line.isprintable() for line in lines)
        head = "\r\n".join((*lines, "", "")).encode()
        return head + self.body if with_body else head
