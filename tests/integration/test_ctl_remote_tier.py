"""The remote tier of a real server, as its operators see it: kvstore-ctl and metrics."""

import re
import signal
import tempfile
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path

import pytest

from kvstore_client.testing import running_store, wait_until
from pages.stamped_pages import LAYOUT, page_count, prompt
from processes.ctl import run, run_json
from processes.diagnosis import documented_checks
from remote.server_hosts import KEY, Host, Hosts, running_hosts
from remote.valkey_server import PASSWORD, ValkeyServer, valkey_server

PROMPT = prompt(1)
PAGES = page_count(PROMPT)


@pytest.fixture
def engine() -> Iterator[ValkeyServer]:
    """Provides an engine, in a folder whose path is short enough for a socket."""
    with (
        tempfile.TemporaryDirectory(prefix="kv-") as folder,
        valkey_server(Path(folder)) as server,
    ):
        yield server


@pytest.fixture
def hosts(engine: ValkeyServer) -> Iterator[Hosts]:
    """Provides hosts on the engine."""
    with (
        tempfile.TemporaryDirectory(prefix="kv-") as folder,
        running_hosts(Path(folder), engine) as made,
    ):
        yield made


def metrics(host: Host) -> str:
    """Returns a scrape."""
    (port,) = re.findall(r"http_listening.*port=(\d+)", host.store.log)
    connection = HTTPConnection("127.0.0.1", int(port), timeout=30.0)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    return text


def value(text: str, series: str) -> float:
    """Returns the value of a series in a scrape."""
    (found,) = re.findall(rf"^{re.escape(series)} (\S+)$", text, flags=re.MULTILINE)
    return float(found)


def test_the_tier_is_shown_with_what_came_and_went(hosts: Hosts) -> None:
    """Stats, top, remote, doctor and metrics agree, and none of them has a secret."""
    first, second = hosts.add(), hosts.add("--metrics-listen", "127.0.0.1:0")
    first.publish(PROMPT)
    assert second.matched(PROMPT) == PAGES
    shown = run_json(second.store, "remote")
    assert (shown["state"], shown["read_page_count"]) == ("STATE_OPEN", PAGES)
    assert f"valkey+unix://{hosts.engine.socket}" in run(second.store, "remote").stdout
    assert "remote tier" in run(second.store, "stats").stdout
    assert re.search(r"remote  open; 1 of \d+ lookups? found pages", _top(second))
    checks = {each["check"]: each for each in run_json(second.store, "doctor")["checks"]}
    assert checks.keys() <= documented_checks()
    assert checks["remote tier"]["outcome"] == checks["remote removals"]["outcome"] == "ok"
    # The rights in the docs allow no look at the engine's settings.
    assert wait_until(lambda: bool(second.remote.findings))
    outcomes = {
        each["outcome"]
        for each in run_json(second.store, "doctor")["checks"]
        if each["check"] == "engine settings"
    }
    assert outcomes <= {"skipped", "ok"}
    text = metrics(second)
    assert value(text, "kvstore_remote_up") == 1
    assert value(text, 'kvstore_remote_looks_total{answer="hit"}') == 1
    assert value(text, "kvstore_remote_read_pages_total") == PAGES
    assert value(text, "kvstore_remote_read_bytes_total") == PAGES * LAYOUT.page_bytes
    everything = (
        text
        + second.store.log
        + "".join(
            run(second.store, *each).stdout
            for each in (["stats", "--json"], ["doctor"], ["remote"])
        )
    )
    assert PASSWORD not in everything
    assert KEY.hex() not in everything


def _top(host: Host) -> str:
    return run(host.store, "top", "--once").stdout


def test_forget_is_for_all_hosts(hosts: Hosts) -> None:
    """It ends with 0 once no host finds the pages."""
    first = hosts.add()
    first.publish(PROMPT)
    result = run(first.store, "remote", "forget", "tiny", "--yes")
    assert result.exit_code == 0, result.output
    # A write to the engine may still hold some pages. The store removes them when it ends.
    removed = re.findall(r"(\d+) pages?", result.stdout)
    assert sum(map(int, removed)) == page_count(PROMPT)
    assert hosts.add().looks_in_vain(PROMPT)
    assert run(first.store, "remote", "forget", "tiny", typed="n\n").exit_code == 1


def test_forget_says_that_the_engine_has_not_confirmed(hosts: Hosts) -> None:
    """It ends with 1, doctor fails, and both are fine once the engine answers."""
    first = hosts.add()
    first.publish(PROMPT)
    hosts.engine.send(signal.SIGSTOP)
    result = run(first.store, "remote", "forget", "tiny", "--yes")
    assert (result.exit_code, "has not confirmed" in result.stderr) == (1, True)
    doctor = run(first.store, "doctor", "--json")
    assert doctor.exit_code == 1
    assert re.search(r"remote removals", doctor.stdout)
    hosts.engine.send(signal.SIGCONT)
    assert wait_until(lambda: not first.remote.pending_removal_count), first.store.log
    assert run(first.store, "doctor").exit_code == 0


def test_a_password_that_is_refused_is_said(hosts: Hosts) -> None:
    """Doctor names the file; a corrected one is used without a restart."""
    hosts.engine.write_credential("wrong")
    first = hosts.add()

    def advice() -> str:
        first.matched(PROMPT)
        checks = {each["check"]: each for each in run_json(first.store, "doctor")["checks"]}
        return str(checks["remote tier"].get("advice", ""))

    assert wait_until(lambda: "--remote-credential-file" in advice()), first.store.log
    hosts.engine.write_credential(PASSWORD)
    assert wait_until(lambda: advice() == ""), first.store.log


def test_a_store_without_the_tier_says_so() -> None:
    """The command ends with 1, and doctor has nothing to do."""
    with running_store() as store:
        result = run(store, "remote")
        assert (result.exit_code, "--remote-url" in result.stderr) == (1, True)
        assert "kvstore_remote" not in run(store, "stats").stdout
        checks = {each["check"]: each for each in run_json(store, "doctor")["checks"]}
        assert checks["remote tier"]["outcome"] == "ok"
