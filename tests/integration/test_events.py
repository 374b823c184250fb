"""Events of a real store, watched by real processes."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from kvstore_client import Client, EventWatch, History, Namespace, NamespaceIdentity, connect_admin
from kvstore_client.errors import QuotaExceeded, StoreDraining, StoreUnavailable
from kvstore_client.testing import RunningStore, wait_until
from pages.stamped_pages import LAYOUT, SMALL_STORE, TOKENS, open_client, write_and_insert
from processes.ctl import run

LIMIT = 30.0
PAGES = len(TOKENS) // LAYOUT.page_tokens
# Of a tenant.
PLACES = 8
pytestmark = pytest.mark.store(*SMALL_STORE)


@pytest.fixture
def opened(fresh_store: RunningStore) -> Iterator[tuple[Client, Namespace]]:
    """Provides a client of the store with a namespace."""
    client, namespace = open_client(fresh_store.runtime_dir)
    yield client, namespace
    client.close()


@contextmanager
def following(store: RunningStore, *more: str) -> Iterator["subprocess.Popen[str]"]:
    """Runs ``kvstore-ctl events --follow`` in a process of its own."""
    command = [sys.executable, "-m", "kvstore_ctl", "events", "--follow", *more]
    with subprocess.Popen(
        [*command, "--runtime-dir", str(store.runtime_dir)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def next_event(process: "subprocess.Popen[str]") -> dict[str, Any]:
    """Waits for the next line of a following process."""
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, process.communicate()
    event: dict[str, Any] = json.loads(line)
    return event


def test_what_is_remembered_is_shown_at_once(
    fresh_store: RunningStore, opened: tuple[Client, Namespace]
) -> None:
    """Past events are shown at once, one line each: lease, namespace and pages, without tokens."""
    write_and_insert(opened[1], TOKENS)
    result = run(fresh_store, "events")
    assert result.exit_code == 0, result.output
    granted, made, inserted = result.stdout.splitlines()
    assert granted.endswith("granted")
    assert made.endswith("opened")
    assert f"pages 0 to {PAGES - 1} inserted into tier 1" in inserted
    for line in (made, inserted):
        assert "tiny" in line
    assert str(TOKENS[1]) not in result.stdout
    assert run(fresh_store, "events", "--new", "--seconds", "0.1").stdout == ""


def test_a_watch_may_take_so_many_seconds(
    fresh_store: RunningStore, opened: tuple[Client, Namespace]
) -> None:
    """A watch of one namespace in JSON ends after the given seconds and has no lease events."""
    write_and_insert(opened[1], TOKENS)
    result = run(fresh_store, "events", "--seconds", "5", "--json", "--namespace", "tin")
    assert result.exit_code == 0, result.output
    made, inserted = map(json.loads, result.stdout.splitlines())
    assert made["namespace_changed"]["change"] == "CHANGE_OPENED"
    assert inserted["pages_inserted"]["page_count"] == PAGES
    assert inserted["pages_inserted"]["cause"] == "CAUSE_INSERTED"
    assert inserted["time"] > made["time"]
    assert run(fresh_store, "events", "--follow", "--seconds", "1").exit_code == 2
    assert run(fresh_store, "events", "--namespace", "no such").exit_code == 2


def test_what_happens_is_followed_by_another_process(
    fresh_store: RunningStore, opened: tuple[Client, Namespace]
) -> None:
    """Another process follows events as they happen, and an interrupt ends it with status 0."""
    client, namespace = opened
    with following(fresh_store, "--json") as process:
        assert next_event(process)["lease_changed"]["change"] == "CHANGE_GRANTED"
        assert "namespace_changed" in next_event(process)
        write_and_insert(namespace, TOKENS)
        inserted = next_event(process)["pages_inserted"]
        assert (inserted["start_page"], inserted["page_count"]) == (0, PAGES)
        assert len(inserted["path_digest"]) == 32
        assert client.flush(LIMIT)
        [info] = client.admin.namespaces()
        client.admin.evict_prefix(info.namespace_id, TOKENS[:16])
        removed = next_event(process)["pages_removed"]
        assert removed["path_digest"] == inserted["path_digest"]
        process.send_signal(signal.SIGINT)
        assert process.wait(LIMIT) == 0


def test_what_comes_while_it_is_watched_has_its_name(
    fresh_store: RunningStore, opened: tuple[Client, Namespace]
) -> None:
    """A namespace opened during the watch is shown by its name."""
    late = NamespaceIdentity(b"late", display_name="late")
    with following(fresh_store) as process:
        assert process.stdout is not None
        assert process.stdout.readline().endswith("granted\n")
        assert "namespace tiny (" in process.stdout.readline()
        opened[0].namespace(late, LAYOUT)
        assert "namespace late (" in process.stdout.readline()


def test_a_watcher_that_hangs_or_dies_holds_up_nobody(
    fresh_store: RunningStore, opened: tuple[Client, Namespace]
) -> None:
    """A stopped watcher delays nobody, and a killed one frees its place."""
    client, namespace = opened
    with following(fresh_store, "--json") as process:
        assert next_event(process)
        process.send_signal(signal.SIGSTOP)
        with client.admin.watch_events(seconds=LIMIT) as watch:
            for number in range(20):
                write_and_insert(namespace, [number] * (2 * LAYOUT.page_tokens) + [1])
            assert next(watch).pages_inserted.page_count == 2
        watches: list[EventWatch] = []

        def has_place() -> bool:
            try:
                watches.append(client.admin.watch_events(seconds=LIMIT))
            except QuotaExceeded:
                return False
            return True

        # The place of the watch that was closed is free once the store has noticed.
        assert all(wait_until(has_place) for _ in range(PLACES - 1))
        with pytest.raises(QuotaExceeded):
            client.admin.watch_events(seconds=LIMIT)
        process.kill()
        assert wait_until(has_place)
        for each in watches:
            each.close()
    assert "Traceback" not in fresh_store.log
    assert "watcher_failed" not in fresh_store.log


def test_a_watch_ends_with_its_store(fresh_store: RunningStore) -> None:
    """A watch ends with its store: with a reason if it drains, and also if it is killed."""
    client, _ = open_client(fresh_store.runtime_dir)
    with (
        connect_admin(fresh_store.runtime_dir) as admin,
        following(fresh_store, "--json") as process,
    ):
        watch = admin.watch_events(seconds=LIMIT)
        assert next_event(process)
        client.close()
        assert fresh_store.stop() == 0
        with pytest.raises(StoreDraining):
            list(watch)
        assert process.wait(LIMIT) == 1
    fresh_store.start()
    with (
        connect_admin(fresh_store.runtime_dir) as admin,
        following(fresh_store, "--json") as process,
    ):
        watch = admin.watch_events(seconds=LIMIT)
        with open_client(fresh_store.runtime_dir)[0]:
            assert next_event(process)
        fresh_store.kill()
        with pytest.raises(StoreUnavailable):
            list(watch)
        assert process.wait(LIMIT) == 3


def test_a_watch_in_a_program(opened: tuple[Client, Namespace]) -> None:
    """A watch in a program has past events and the epoch, and ends by its time or by close."""
    client, namespace = opened
    admin = client.admin
    assert list(admin.watch_events(seconds=0.1)) == []
    remembered = list(admin.watch_events(history=History.ALONE))
    assert [each.sequence_number for each in remembered] == [1, 2]
    watch = admin.watch_events(seconds=LIMIT, history=History.FIRST)
    assert watch.began.began.store_epoch == admin.capabilities().store_epoch
    assert watch.began.began.remembered_event_count == 2
    assert [next(watch), next(watch)] == remembered
    write_and_insert(namespace, TOKENS)
    assert next(watch).pages_inserted.page_count == PAGES
    for _ in range(2):
        watch.close()
    assert list(watch) == []
