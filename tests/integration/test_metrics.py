"""The metrics of a real server over HTTP."""

import re
import signal
import socket
import subprocess
import sys
from http.client import HTTPConnection

import pytest

from kvstore_client.testing import RunningStore, running_store, wait_until
from wire.attached_worker import AttachedWorker

LIMIT = 30.0
pytestmark = pytest.mark.store("--metrics-listen", "127.0.0.1:0")


def ask(store: RunningStore, path: str, **headers: str) -> tuple[int, str, str]:
    """Returns a response's status, content type and body."""
    ports = re.findall(r"http_listening.*port=(\d+)", store.log)
    connection = HTTPConnection("127.0.0.1", int(ports[-1]), timeout=LIMIT)
    connection.request("GET", path, headers=headers)
    response = connection.getresponse()
    body = response.read().decode()
    connection.close()
    return response.status, response.getheader("Content-Type", ""), body


def test_a_scrape_shows_the_store_and_its_process(store: RunningStore) -> None:
    """A scrape shows the store and its process, in Prometheus' text or in OpenMetrics."""
    worker = AttachedWorker(store.runtime_dir)
    worker.grant()
    worker.close()
    status, kind, text = ask(store, "/metrics")
    assert status == 200
    assert kind.startswith("text/plain")
    assert "\nkvstore_ready 1.0\n" in text
    assert 'method="GrantLease",outcome="OK"' in text
    assert "\nprocess_resident_memory_bytes " in text
    status, kind, text = ask(store, "/metrics", Accept="application/openmetrics-text;version=1.0.0")
    assert (status, text.endswith("# EOF\n")) == (200, True)
    assert kind.startswith("application/openmetrics-text")


def test_probes_are_told_whether_it_is_ready_and_lives(store: RunningStore) -> None:
    """The probes answer readiness and liveness by status."""
    assert ask(store, "/healthz")[0] == 200
    assert ask(store, "/livez")[0] == 200
    assert ask(store, "/")[0] == 404


def test_while_it_drains_it_lives_and_is_not_ready() -> None:
    """A draining server is alive, not ready, and still shows its metrics."""
    arguments = "--metrics-listen", "127.0.0.1:0", "--drain-grace", "60"
    with running_store(*arguments) as draining:
        worker = AttachedWorker(draining.runtime_dir)
        worker.grant()
        worker.bind()
        draining._started().send_signal(signal.SIGTERM)
        assert wait_until(lambda: ask(draining, "/healthz")[0] == 503)
        assert ask(draining, "/livez")[0] == 200
        assert "\nkvstore_ready 0.0\n" in ask(draining, "/metrics")[2]
        worker.revoke()
        worker.close()
        assert draining._started().wait(LIMIT) == 0


def test_a_port_that_is_taken_ends_the_server() -> None:
    """A metrics port in use ends the server with status 1 and one line, before it serves."""
    with socket.create_server(("127.0.0.1", 0)) as taken, running_store(start=False) as store:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        ended = subprocess.run(
            [
                *(sys.executable, "-m", "kvstore", "--runtime-dir", str(store.runtime_dir)),
                *("--metrics-listen", address),
            ],
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=False,
        )
    assert ended.returncode == 1
    assert f"{address} cannot be listened on for HTTP" in ended.stderr
