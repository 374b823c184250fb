"""The page of a real server: where it listens, who is answered, and what calls notice of it."""

import http.client
import json
from collections.abc import Iterator
from typing import Any

import pytest

from kvstore_client.testing import RunningStore, running_store
from stores.page_stage import address_of, converse, joined, page_store


@pytest.fixture(scope="module")
def store() -> Iterator[RunningStore]:
    """A server with a page, and pages in it."""
    with page_store() as running:
        with joined(running, "tiny") as namespace:
            converse(namespace)
        yield running


def get(
    store: RunningStore, path: str, method: str = "GET", **headers: str
) -> tuple[http.client.HTTPResponse, bytes]:
    """Asks the page's address for a path."""
    connection = http.client.HTTPConnection(address_of(store).split("/")[2], timeout=30)
    try:
        connection.request(method, path, headers=headers)
        response = connection.getresponse()
        return response, response.read()
    finally:
        connection.close()


def get_json(store: RunningStore, path: str) -> Any:  # noqa: ANN401  # whatever the route has
    """Returns what a route answers."""
    response, body = get(store, path)
    assert response.status == 200, body
    return json.loads(body)


def test_the_page_shows_what_the_store_has(store: RunningStore) -> None:
    """Its figures are those of the store, and its tree has every page."""
    state = get_json(store, "/api/state")
    [namespace] = state["namespaces"]
    tree = get_json(store, f"/api/tree?namespace={namespace['number']}")["node"]
    assert (namespace["name"], namespace["pages"] > 0) == ("tiny", True)
    assert tree["total"] == namespace["pages"] * namespace["page_tokens"]
    assert tree["hits"] > 0
    assert state["totals"]["lookup_count"] == namespace["lookups"] > 0


def test_the_page_is_of_this_host_alone(store: RunningStore) -> None:
    """A site's name that leads here is refused, and nothing of it may be framed or read."""
    response, _ = get(store, "/api/state", Host="rebound.example")
    assert response.status == 421
    response, _ = get(store, "/api/state", Host="localhost:7402")
    assert response.status == 200
    assert response.headers["Cross-Origin-Resource-Policy"] == "same-origin"
    assert response.headers["Access-Control-Allow-Origin"] is None
    assert response.headers["Set-Cookie"] is None
    response, _ = get(store, "/")
    assert "frame-ancestors 'none'" in response.headers["Content-Security-Policy"]


def test_the_page_changes_nothing(store: RunningStore) -> None:
    """It is read, and nothing else; what is no file of it is not found, wherever it leads."""
    for method in ("POST", "PUT", "DELETE"):
        assert get(store, "/api/state", method)[0].status == 405
    for path in ("/../../etc/passwd", "/..%2fsite.py", "/static/main.js", "/api/", "/metrics"):
        assert get(store, path)[0].status == 404


def test_there_is_no_page_unless_it_is_asked_for() -> None:
    """Nor an address of another host, which would be everybody's."""
    with running_store("--log-format", "json") as running:
        assert "http_listening" not in running.log
    refused = pytest.raises(RuntimeError, match="has to be of this host alone")
    with refused, page_store(listen="0.0.0.0:0"):
        pass
