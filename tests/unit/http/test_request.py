"""What a head asks for, and which heads ask for nothing that is answered."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore.http.request import Refused, Request, parse_request


def head(line: str, *headers: str) -> bytes:
    """Returns a request's head."""
    return "\r\n".join((line, *headers, "", "")).encode("latin-1")


def status_of(request_head: bytes) -> int:
    """Returns the status of a refusal, or 200."""
    try:
        parse_request(request_head)
    except Refused as refused:
        return refused.status
    return 200


def test_a_request_is_read() -> None:
    """Path and query decoded, headers by their names in lower case."""
    found = parse_request(
        head("GET /api/a%20tree?name=%C3%A9&name=&depth=2 HTTP/1.1", "Host: x", "ACCEPT: a/b")
    )
    assert found == Request(
        "GET",
        "/api/a tree",
        {"name": ["\u00e9", ""], "depth": ["2"]},
        {"host": "x", "accept": "a/b"},
    )


@pytest.mark.parametrize(
    ("line", "headers", "status"),
    [
        ("GET / HTTP/1.1", [], 400),
        ("GET / HTTP/1.1", ["Host: a", "Host: b"], 400),
        ("GET / HTTP/1.1", ["Host: a", "no header"], 400),
        ("GET / HTTP/1.1", ["Host: a", "Content-Length: 1"], 400),
        ("GET / HTTP/1.1", ["Host: a", "Transfer-Encoding: chunked"], 400),
        ("GET / HTTP/1.1", ["Host: a", *(f"X-{n}: y" for n in range(200))], 400),
        ("GET http://a/ HTTP/1.1", ["Host: a"], 400),
        ("GET /%ff HTTP/1.1", ["Host: a"], 400),
        ("GET /?" + "a=b&" * 20 + " HTTP/1.1", ["Host: a"], 400),
        ("GET / HTTP/2.0", ["Host: a"], 400),
        ("GET /", [], 400),
        ("get / HTTP/1.1", ["Host: a"], 400),
        ("POST / HTTP/1.1", ["Host: a", "Content-Length: 1"], 405),
        ("DELETE / HTTP/1.1", ["Host: a"], 405),
    ],
)
def test_what_is_no_request_is_refused(line: str, headers: list[str], status: int) -> None:
    """Each with a status that says whose fault it is."""
    with pytest.raises(Refused) as refused:
        parse_request(head(line, *headers))
    assert refused.value.status == status
    assert (status == 405) == (refused.value.headers == {"Allow": "GET, HEAD"})


@given(st.binary(max_size=200))
def test_no_bytes_are_anything_else_than_a_request_or_refused(data: bytes) -> None:
    """Whatever comes, nothing else is raised."""
    for line in (data, b"GET / HTTP/1.1\r\nHost: a\r\n" + data, b"GET /" + data + b" HTTP/1.1"):
        assert status_of(line + b"\r\n\r\n") in {200, 400, 405}
