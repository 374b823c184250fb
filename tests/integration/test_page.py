"""kvstore-ctl page on a real store: its answers, its address and its end."""

import http.client
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from kvstore_client.testing import wait_until
from stores.page_stage import converse, joined, page_of, page_store


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Provides the host and port of the page of a store with pages."""
    with page_store() as store:
        with joined(store, "tiny") as namespace:
            converse(namespace)
        with page_of(store) as found:
            yield found.split("/")[2]


def get(
    address: str, path: str, method: str = "GET", **headers: str
) -> tuple[http.client.HTTPResponse, bytes]:
    """Requests a path of the page's address."""
    connection = http.client.HTTPConnection(address, timeout=30)
    try:
        connection.request(method, path, headers=headers)
        response = connection.getresponse()
        return response, response.read()
    finally:
        connection.close()


def get_json(address: str, path: str) -> Any:  # noqa: ANN401  # whatever the route has
    """Returns the JSON of a route."""
    response, body = get(address, path)
    assert response.status == 200, body
    return json.loads(body)


def test_the_page_shows_what_the_store_has(address: str) -> None:
    """The page's figures are the store's, and its tree has every page."""
    state = get_json(address, "/api/state")
    [namespace] = state["namespaces"]
    tree = get_json(address, f"/api/tree?namespace={namespace['number']}")["node"]
    assert (namespace["name"], namespace["pages"] > 0) == ("tiny", True)
    assert tree["total"] == namespace["pages"] * namespace["page_tokens"]
    assert tree["hits"] > 0
    assert state["totals"]["lookup_count"] == namespace["lookups"] > 0


def test_the_page_is_of_this_host_alone(address: str) -> None:
    """The page refuses another site's host name, and other sites may neither frame nor read it."""
    response, _ = get(address, "/api/state", Host="rebound.example")
    assert response.status == 400
    response, _ = get(address, "/api/state", Host="localhost:7402")
    assert response.status == 200
    assert response.headers["Cross-Origin-Resource-Policy"] == "same-origin"
    assert response.headers["Access-Control-Allow-Origin"] is None
    assert response.headers["Set-Cookie"] is None
    response, _ = get(address, "/")
    assert "frame-ancestors 'none'" in response.headers["Content-Security-Policy"]


def test_the_page_changes_nothing(address: str) -> None:
    """The page accepts GET and HEAD only, and has no other paths."""
    for method in ("POST", "PUT", "DELETE"):
        assert get(address, "/api/state", method)[0].status == 405
    for path in (
        "/../../etc/passwd",
        "/..%2fsite.py",
        "/%2e%2e/site.py",
        "/static/main.js",
        "/api/",
        "/metrics",
    ):
        assert get(address, path)[0].status == 404


@pytest.mark.parametrize(
    "listen", ["0.0.0.0:0", "[2001:db8::1]:7402", "this-host.example:7402", "127.0.0.1", "7402"]
)
def test_an_address_of_another_host_is_refused(listen: str) -> None:
    """An address that other hosts reach is refused as a wrong command line."""
    with page_store() as store:
        where = ("--runtime-dir", str(store.runtime_dir), "--listen", listen)
        done = run_page(*where)
    assert (done.returncode, done.stdout) == (2, "")
    assert "use an address of loopback, such as 127.0.0.1:7402" in done.stderr


def test_a_port_in_use_is_refused(address: str) -> None:
    """A port in use is refused with the kernel's reason."""
    done = run_page("--listen", address)
    assert done.returncode == 2
    assert "Address already in use" in done.stderr


def test_without_a_store_there_is_no_page(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Without a store the command ends with the status of an unreachable store."""
    nowhere = str(tmp_path_factory.mktemp("no"))
    done = run_page("--listen", "127.0.0.1:0", "--runtime-dir", nowhere)
    assert (done.returncode, done.stdout) == (3, "")


def test_the_page_goes_on_after_a_restart_of_the_store() -> None:
    """The page answers 503 while the store is down, and works again after its restart."""
    with page_store() as store, page_of(store) as found:
        address = found.split("/")[2]
        before = get_json(address, "/api/state")["epoch"]
        store.kill()
        assert wait_until(lambda: get(address, "/api/state")[0].status == 503)
        store.start()
        assert wait_until(lambda: get(address, "/api/state")[0].status == 200)
        assert get_json(address, "/api/state")["epoch"] != before


def test_the_page_ends_at_sigterm() -> None:
    """SIGTERM ends the page, also with an open connection."""
    with page_store() as store:
        where = ("--runtime-dir", str(store.runtime_dir), "--listen", "127.0.0.1:0")
        command = [sys.executable, "-m", "kvstore_ctl", "page", *where]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            address = process.stdout.readline().split("/")[2]
            idle = http.client.HTTPConnection(address, timeout=30)
            idle.request("GET", "/")
            assert idle.getresponse().read()
            process.terminate()
            assert process.wait(30) == -signal.SIGTERM
            idle.close()


def run_page(*arguments: str) -> "subprocess.CompletedProcess[str]":
    """Runs the command and returns its result."""
    command = [sys.executable, "-m", "kvstore_ctl", "page", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
