"""The work beside the callers of tails.py, all of it in one process of its own.

Inserts of new prompts make the store move pages to tier 2 and write them to tier 3.
"""

import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection
from itertools import islice
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Protocol

from kvstore.background import RECENT
from kvstore_client import connect_admin
from support.child import die_with_parent
from support.rpc.worker import PAGE_TOKENS, Worker, attached_worker, page_count
from support.tails.fleet import READY_TIMEOUT
from support.tails.namespaces import fresh_prompts, key_of

# It competes with the callers for the processors as little as possible.
NICENESS = 10
TIMEOUT = 30.0
# Inserts of other engines: prompts a second, and pages of each.
PROMPTS_PER_SECOND, PROMPT_PAGES = 10.0, 16
# The namespace that is removed once a slice: prompts for each second of it, and pages of each.
REMOVED_PER_SECOND, REMOVED_PAGES = 16.0, 100
# Seconds between two looks whether the store has moved and written what was inserted.
LOOK_SECONDS = 0.25
# The share of a slice before the removal.
BEFORE_REMOVAL = 0.3
WATCHERS = 2


class Work(Protocol):
    """Work of one kind. One thread uses it."""

    def prepare(self, seconds: float) -> None:
        """Makes ready for a slice of so many seconds, before it begins."""

    def run(self, seconds: float) -> None:
        """Works for some seconds."""


class Inserts:
    """Inserts of other engines."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._worker = stack.enter_context(_worker(folder, "inserts"))
        self._prompts = fresh_prompts(100, PROMPT_PAGES)

    def prepare(self, seconds: float) -> None:
        """Needs nothing."""

    def run(self, seconds: float) -> None:
        """Inserts prompts at an even rate."""
        for _ in ticks(seconds, 1 / PROMPTS_PER_SECOND):
            insert(self._worker, next(self._prompts))


class Removal:
    """The removal of a large namespace's pages in one call."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._worker = stack.enter_context(_worker(folder, "removal"))
        self._admin = stack.enter_context(connect_admin(folder))
        self._prompts = fresh_prompts(101, REMOVED_PAGES)

    def prepare(self, seconds: float) -> None:
        """Inserts the pages, and waits until all are where they belong."""
        for prompt in islice(self._prompts, round(seconds * REMOVED_PER_SECOND)):
            insert(self._worker, prompt)
        before = -1
        while (now := self._written()) != before:
            before = now
            time.sleep(LOOK_SECONDS)

    def _written(self) -> int:
        stats = self._admin.stats()
        return stats.tier_3.written_page_count + stats.counters.demoted_page_count

    def run(self, seconds: float) -> None:
        """Removes them after a while."""
        time.sleep(seconds * BEFORE_REMOVAL)
        self._worker.evict(b"")


class Scrapes:
    """Scrapes of metrics, as often as the store makes a snapshot of its own."""

    def __init__(self, port: int) -> None:
        self._port = port

    def prepare(self, seconds: float) -> None:
        """Needs nothing."""

    def run(self, seconds: float) -> None:
        """Scrapes once a second."""
        for _ in ticks(seconds, 1.0):
            connection = HTTPConnection("127.0.0.1", self._port, timeout=TIMEOUT)
            connection.request("GET", "/metrics")
            connection.getresponse().read()
            connection.close()


class Statistics:
    """Calls of ``GetStats``, as of an operator's view."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._admin = stack.enter_context(connect_admin(folder))

    def prepare(self, seconds: float) -> None:
        """Needs nothing."""

    def run(self, seconds: float) -> None:
        """Asks once a second."""
        for _ in ticks(seconds, 1.0):
            self._admin.stats()


class Watch:
    """A watcher of all events."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._admin = stack.enter_context(connect_admin(folder))

    def prepare(self, seconds: float) -> None:
        """Needs nothing."""

    def run(self, seconds: float) -> None:
        """Reads events."""
        with self._admin.watch_events(seconds=seconds) as events:
            for _ in events:
                pass


class Calls:
    """Calls that a store gives way to, and that cost it nearly nothing."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._worker = stack.enter_context(_worker(folder, "calls"))

    def prepare(self, seconds: float) -> None:
        """Needs nothing."""

    def run(self, seconds: float) -> None:
        """Calls so often that the store expects another call at any time."""
        for number in ticks(seconds, RECENT / 2):
            self._worker.abort(number + 1)


# By name, in the order in which they are made ready.
KINDS = ("removal", "inserts", "scrapes", "stats", "watchers")
# Of the store that works beside another one's calls.
CALLS = "calls"


class Background:
    """The work beside the callers, which runs one slice at a time."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def prepare(self, seconds: float) -> None:
        """Makes everything ready for a slice."""
        self._connection.send(("prepare", seconds))
        self.wait()

    def begin(self, seconds: float) -> None:
        """Begins the work of a slice."""
        self._connection.send(("run", seconds))

    def wait(self) -> None:
        """Waits for the end of the slice. Raises ``RuntimeError`` if some work failed."""
        if not self._connection.poll(READY_TIMEOUT):
            raise TimeoutError("the work beside the callers did not end")
        failures: list[str] = self._connection.recv()
        if failures:
            raise RuntimeError(f"work beside the callers failed: {failures}")


@contextmanager
def background_of(folder: Path, port: int, kinds: tuple[str, ...]) -> Iterator[Background]:
    """Starts a process for the kinds of work at one store, and ends it at the end."""
    context = get_context("spawn")
    near, far = context.Pipe()
    arguments = (far, folder, port, kinds, os.getpid())
    process = context.Process(target=_serve, args=arguments, daemon=True)
    process.start()
    far.close()
    try:
        yield Background(near)
    finally:
        near.close()
        process.join()


def ticks(seconds: float, period: float) -> Iterator[int]:
    """Yields a number each ``period`` from now on, for some seconds."""
    begin = time.monotonic()
    for number in range(max(int(seconds / period), 1)):
        time.sleep(max(begin + number * period - time.monotonic(), 0.0))
        yield number


def insert(worker: Worker, tokens: bytes) -> None:
    """Inserts the pages of a prompt that are not cached, and holds nothing of it.

    Inserts nothing if the store has no room.
    """
    pin_id, reservation_id, count = worker.acquire(tokens)
    cached = page_count(tokens) - count
    if count:
        position = cached * PAGE_TOKENS
        base = pin_id if cached else 0
        worker.insert(reservation_id, tokens[position * 4 :], position, base)
    worker.abort(reservation_id)
    worker.release(pin_id, reservation_id + 1)


@contextmanager
def _worker(folder: Path, name: str) -> Iterator[Worker]:
    with attached_worker(folder, hot_lane=True, key=key_of(name)) as worker:
        yield worker


def _works(folder: Path, port: int, kinds: tuple[str, ...], stack: ExitStack) -> list[Work]:
    works: list[Work] = []
    if "removal" in kinds:
        works.append(Removal(folder, stack))
    if "inserts" in kinds:
        works.append(Inserts(folder, stack))
    if "scrapes" in kinds:
        works.append(Scrapes(port))
    if "stats" in kinds:
        works.append(Statistics(folder, stack))
    if CALLS in kinds:
        works.append(Calls(folder, stack))
    if "watchers" in kinds:
        works += [Watch(folder, stack) for _ in range(WATCHERS)]
    return works


def _serve(
    connection: Connection, folder: Path, port: int, kinds: tuple[str, ...], parent: int
) -> None:
    die_with_parent(parent)
    os.nice(NICENESS)
    with ExitStack() as stack:
        works = _works(folder, port, kinds, stack)
        while True:
            try:
                step, seconds = connection.recv()
            except EOFError:
                return
            connection.send(_do(step, seconds, works))


def _do(step: str, seconds: float, works: Sequence[Work]) -> list[str]:
    """Does a step of all works at the same time. Returns what failed."""
    failures: list[str] = []

    def run(work: Work) -> None:
        try:
            getattr(work, step)(seconds)
        except Exception as error:  # noqa: BLE001  # the benchmark ends with it
            failures.append(f"{type(work).__name__}: {error!r}")

    threads = [threading.Thread(target=run, args=(each,)) for each in works]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    return failures
