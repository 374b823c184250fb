"""A server that is killed again and again at any moment: its successor and its workers."""

import os
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import NamedTuple

import pytest

from kvstore_client import Client, ClientConfig, Namespace, errors
from kvstore_client.runtime_dir import RuntimeDir
from kvstore_client.testing import RunningStore, wait_until
from pages.stamped_pages import (
    IDENTITY,
    LAYOUT,
    LIMIT,
    SMALL_STORE,
    holds_tokens,
    nothing_held,
    page_bytes,
)

# Of which a test asserts shares.
TTL = 10.0
KILLS = 20
PROMPTS = [list(range(first, first + 17)) for first in range(1000, 1400, 100)]
# A store of 32 pages that has a while to drain. Each test leaves one running.
pytestmark = pytest.mark.store(*SMALL_STORE, "--drain-grace", "60")


def request(namespace: Namespace, tokens: list[int], tally: Counter[str]) -> None:
    """Serves a prompt as an engine does, with or without the store, and counts the outcome."""
    total = len(tokens) // LAYOUT.page_tokens
    with namespace.acquire(tokens, total_page_count=total) as acquired:
        matched, reservation = acquired.match.page_count, acquired.reservation
        assert holds_tokens(namespace, tokens, acquired.match.pages)
        tally["hits" if matched == total else "misses"] += 1
        if reservation is not None and reservation.pages:
            for number, page in enumerate(reservation.pages, start=matched):
                namespace.page(page)[:] = page_bytes(tokens, number)
            start = matched * LAYOUT.page_tokens
            try:
                reservation.insert(
                    tokens[start : total * LAYOUT.page_tokens], position=start, base=acquired.match
                )
            except errors.StoreError:
                tally["not inserted"] += 1


class Load:
    """Threads that make requests until the end. ``tally`` counts their outcomes."""

    def __init__(self, namespace: Namespace) -> None:
        self.tally: Counter[str] = Counter()
        self.failures: list[BaseException] = []
        self._namespace = namespace
        self._ended = Event()
        self._threads = [Thread(target=self._run, daemon=True) for _ in range(2)]
        for each in self._threads:
            each.start()

    def _run(self) -> None:
        try:
            while not self._ended.wait(0.01):
                for tokens in PROMPTS:
                    request(self._namespace, tokens, self.tally)
        except BaseException as error:  # noqa: BLE001  # looked at by the test
            self.failures.append(error)

    def hits(self) -> bool:
        """Waits for another hit. Returns whether there was one."""
        before = self.tally["hits"]
        return wait_until(lambda: self.tally["hits"] > before or bool(self.failures))

    def end(self) -> None:
        """Stops the threads, and fails if a request raised an error."""
        self._ended.set()
        for each in self._threads:
            each.join()
        assert self.failures == []


@contextmanager
def load_on(store: RunningStore) -> Iterator[tuple[Client, Load]]:
    """Provides a client of the store, with two threads that make requests."""
    config = ClientConfig(ttl=TTL, call_timeout=LIMIT, longest_backoff=0.1)
    with Client(store.runtime_dir, config) as client:
        namespace = client.namespace(IDENTITY, LAYOUT)
        assert namespace.wait_open(LIMIT), namespace.failure
        load = Load(namespace)
        try:
            assert load.hits()
            yield client, load
        finally:
            load.end()


class Held(NamedTuple):
    """This process's descriptors, threads and mappings."""

    descriptors: int
    threads: int
    mappings: int

    @classmethod
    def now(cls) -> "Held":
        """Counts them now."""
        maps = Path("/proc/self/maps").read_text(encoding="utf-8")
        return cls(
            len(list(Path("/proc/self/fd").iterdir())),
            sum(each.name.startswith("kvstore") for each in threading.enumerate()),
            maps.count("/memfd:kvstore"),
        )

    def within(self, other: "Held") -> bool:
        """Returns whether the dead servers left nothing in this process.

        gRPC may keep one or two descriptors. The arena may have grown by less than half an extent
        for each death, with two mappings each.
        """
        return (
            self.descriptors <= other.descriptors + 3
            and self.threads <= other.threads
            and self.mappings <= other.mappings + KILLS // 2
        )


def holder_of(store: RunningStore) -> str:
    """Returns the pid in the lock file."""
    path = RuntimeDir(store.runtime_dir).path / "kvstore.flock"
    return path.read_text(encoding="ascii").strip() if path.exists() else ""


def answers(path: Path) -> bool:
    """Returns whether a unix socket accepts connections."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
        return peer.connect_ex(str(path)) == 0


def instants(store: RunningStore) -> list[Callable[[], bool]]:
    """Returns the moments of a server's start at which it may be killed."""
    folder = RuntimeDir(store.runtime_dir)
    return [
        lambda: holder_of(store) == str(store.pid),
        lambda: answers(folder.attach_socket),
        lambda: answers(folder.grpc_socket),
        lambda: True,
    ]


def test_a_server_killed_at_any_instant_is_replaced_at_once(store: RunningStore) -> None:
    """A server killed 20 times is replaced, and the worker keeps nothing of the dead servers."""
    with load_on(store) as (_, load):
        before = Held.now()
        for number in range(KILLS):
            store.kill()
            store.begin()
            if number % 3 == 0:
                assert load.hits(), store.log
            else:
                came = instants(store)[number // 3 % 3 if number % 3 == 1 else -1]
                assert wait_until(came), store.log
        assert load.tally["misses"] > 0
        assert wait_until(lambda: Held.now().within(before)), (before, Held.now())
    assert store.log.count("server_started") > KILLS / 3
    assert "another kvstore-server" not in store.log
    assert "Traceback" not in store.log


def test_a_server_killed_while_it_drains_is_replaced_at_once(store: RunningStore) -> None:
    """A server killed during its drain is replaced without cleaning up."""
    with load_on(store) as (_, load):
        os.kill(store.pid, signal.SIGTERM)
        assert wait_until(lambda: "drain_started" in store.log)
        store.kill()
        store.start()
        assert load.hits()


def test_workers_are_back_within_two_lease_periods(store: RunningStore) -> None:
    """The first hit comes within two TTLs after the successor serves."""
    with load_on(store) as (client, load):
        epoch = client.store_epoch
        store.kill()
        # The connection's end tells, not the lease's: that would have taken until its end.
        begin = time.monotonic()
        assert wait_until(lambda: client.store_epoch != epoch)
        assert time.monotonic() - begin < TTL / 2
        store.start()
        begin = time.monotonic()
        assert load.hits()
        assert time.monotonic() - begin < 2 * TTL
        load.end()
        assert wait_until(lambda: client.flush(0) and nothing_held(client))
