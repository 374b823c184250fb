"""The client processes of outlive.py: load, one that asks all the time, and one with long holds."""

import json
import os
import struct
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from multiprocessing import get_context
from multiprocessing.context import SpawnProcess
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import NamedTuple

from kvstore_client import Acquired, Client, ClientConfig, Namespace
from kvstore_client.errors import StoreError
from kvstore_client.testing import wait_until
from support.child import die_with_parent
from support.page_stamps import TOKEN_BYTES, Stamp, page_keys, stamped
from support.succession.conversations import IDENTITY, LAYOUT, PAGE_TOKENS, tokens_of
from support.succession.load import Load, Mappings, Orders
from support.succession.mutants import swap_descriptors

# Seconds.
OPEN_TIMEOUT, REOPEN_TIMEOUT, END_TIMEOUT = 60.0, 15.0, 60.0
# Longer than a start of a server on a busy machine: afterwards a lease is over.
TTL = 60.0
# A client without an answer asks again after this time, and so does one with an answer.
ASK_EVERY = 0.001
# Between two looks whether the load goes on.
PAUSE = 0.01
# Longer times between two answers are written down.
GAP = 0.02
_GAP = struct.Struct("<dd")
# Conversations that no other client uses.
_FAR = 1 << 24
_ASKED_PAGES, _HELD_PAGES, _RESERVED_PAGES = 8, 6, 4


class Gap(NamedTuple):
    """A time without answers, by the monotonic clock: the last one before it, the first after."""

    begin: float
    end: float


class Shared(NamedTuple):
    """Objects that all client processes share with the benchmark."""

    # Set while mappings are counted, while no requests are made, and at the end.
    counting: Event
    pausing: Event
    ending: Event
    requests_begun: "Synchronized[int]"


class Clients:
    """Processes of a kind each, until :meth:`end`. One thread uses it."""

    def __init__(self, runtime_dir: Path, folder: Path, load_count: int, seed: int) -> None:
        self.gaps = folder / "gaps"
        self.rows = folder / "rows"
        self.rows.mkdir()
        # A process that is killed while it writes to a queue would stop its reader for ever.
        self.results = folder / "results"
        self.results.mkdir()
        self.gaps.touch()
        self._context = get_context("spawn")
        self._runtime_dir = runtime_dir
        self._load_count = load_count
        self._seed = seed
        self._numbers = count()
        self._processes: dict[str, SpawnProcess] = {}
        self.shared = Shared(
            self._context.Event(),
            self._context.Event(),
            self._context.Event(),
            self._context.Value("Q", 0),
        )
        for _ in range(load_count):
            self._start("load", _load)
        self._start("asker", _ask, self.gaps)
        self._start_with_holds("holder", self.shared)

    def start_victim(self) -> tuple[str, SpawnProcess]:
        """Starts a process, to be killed, and waits until it has holds; returns its name."""
        # A killed process may leave a lock of an event taken for ever.
        name = self._start_with_holds("victim", self.shared._replace(ending=self._context.Event()))
        return name, self._processes.pop(name)

    def swap_descriptors(self, holder: Path, ending: str) -> None:
        """Swaps two descriptors in a holder, from a process that ends as their owner."""
        process = self._context.Process(target=swap_descriptors, args=(holder, ending))
        process.start()
        process.join()
        if process.exitcode != 0:
            raise RuntimeError(f"the descriptors were not swapped: {process.exitcode}")

    def answers_since(self, since: float) -> list[Gap]:
        """Returns the times without answers that ended after a moment."""
        data = self.gaps.read_bytes()
        whole = data[: len(data) - len(data) % _GAP.size]
        gaps = [Gap(*each) for each in _GAP.iter_unpack(whole)]
        return [gap for gap in gaps if gap.end > since]

    def end(self) -> Counter[str]:
        """Ends all clients, and returns the sums of their counts."""
        self.shared.ending.set()
        sums = Counter[str]()
        for name, process in self._processes.items():
            process.join(END_TIMEOUT)
            if process.exitcode != 0:
                sys.stderr.write(f"{name} ended with {process.exitcode}\n")
                sums["crashed_clients"] += 1
        for path in self.results.glob("*.json"):
            sums.update(json.loads(path.read_text(encoding="utf-8")))
        return sums

    def kill(self) -> None:
        """Kills all clients that live."""
        for process in self._processes.values():
            process.kill()
            process.join()

    def _start_with_holds(self, kind: str, shared: Shared) -> str:
        ready = self._context.Event()
        name = self._start(kind, _hold, ready, shared=shared)
        if not ready.wait(OPEN_TIMEOUT):
            raise RuntimeError(f"{name} has no holds after {OPEN_TIMEOUT} s")
        return name

    def _start(
        self,
        kind: str,
        target: Callable[..., None],
        *arguments: object,
        shared: Shared | None = None,
    ) -> str:
        number = next(self._numbers)
        name = f"{kind}-{number}"
        orders = Orders(
            *(name, number, self._load_count, self._runtime_dir),
            *(self.rows, self.results, self._seed + number),
        )
        given = target, orders, shared or self.shared, os.getpid(), *arguments
        process = self._context.Process(target=_run, args=given, daemon=True)
        process.start()
        self._processes[name] = process
        return name


def _run(  # a process's main function
    target: Callable[..., None],
    orders: Orders,
    shared: Shared,
    parent: int,
    *arguments: object,
) -> None:
    die_with_parent(parent)
    config = ClientConfig(display_name=orders.name, ttl=TTL)
    with Client(orders.runtime_dir, config) as client:
        namespace = client.namespace(IDENTITY, LAYOUT)
        if not namespace.wait_open(OPEN_TIMEOUT):
            raise RuntimeError(f"{orders.name}: {namespace.failure}")
        target(client, namespace, orders, shared, *arguments)


def _load(client: Client, namespace: Namespace, orders: Orders, shared: Shared) -> None:
    load, mappings = Load(client, namespace, orders, shared.requests_begun), Mappings()
    while not shared.ending.is_set():
        if shared.pausing.is_set():
            if client.store_epoch is None:
                # The store's memory is not the next one's, which waits until it is unmapped.
                load.end()
            time.sleep(PAUSE)
            continue
        load.request()
        if namespace.failure is None:
            mappings.look(namespace, counting=shared.counting.is_set())
    load.end()
    if namespace.wait_open(REOPEN_TIMEOUT):
        mappings.look(namespace, counting=True)
    counts = {"mappings_made_anew": mappings.anew, "extents_added": mappings.added}
    orders.report({**load.counts, **counts})


def _ask(client: Client, namespace: Namespace, orders: Orders, shared: Shared, gaps: Path) -> None:
    """Asks for a cached prompt without end, and notes each time without an answer."""
    del client
    counts, last = Counter[str](), time.monotonic()
    prompt = _LongPrompt(orders, _ASKED_PAGES)
    with gaps.open("ab", buffering=0) as file:
        while not shared.ending.is_set():
            with namespace.match(prompt.tokens) as match:
                now = time.monotonic()
                if match.failure is None:
                    if now - last > GAP:
                        file.write(_GAP.pack(last, now))
                    last = now
                    counts["asked"] += 1
                pages = match.page_count
            if match.failure is None and pages < _ASKED_PAGES:
                counts["asked_in_vain"] += 1
                _publish_again(namespace, prompt, counts)
            time.sleep(ASK_EVERY)
    orders.report(counts)


def _hold(
    client: Client, namespace: Namespace, orders: Orders, shared: Shared, ready: Event
) -> None:
    """Holds a pin and a reservation until the end, then inserts into it and releases both."""
    counts = Counter[str]()
    prompt = _LongPrompt(orders, _HELD_PAGES + _RESERVED_PAGES)
    acquired = prompt.acquire_soon(namespace)
    prompt.insert(namespace, acquired, 0, _HELD_PAGES)
    with acquired, namespace.match(prompt.tokens) as match:
        if match.page_count != _HELD_PAGES:
            raise RuntimeError(f"{orders.name} holds {match.page_count} pages: {match.failure}")
        views = [namespace.page(page) for page in match.pages]
        contents = [bytes(view) for view in views]
        ready.set()
        ended, epoch = False, client.store_epoch
        # A store of another epoch has none of it, and waits until it is unmapped.
        while not ended and client.store_epoch == epoch:
            ended = shared.ending.wait(0.1)
            if [bytes(view) for view in views] != contents:
                counts["wrong_pages"] += 1
        try:
            if not (ended and namespace.wait_open(REOPEN_TIMEOUT) and match.current):
                raise StoreError("the store has nothing of these holds")  # noqa: TRY301
            prompt.insert(namespace, acquired, _HELD_PAGES, _HELD_PAGES + _RESERVED_PAGES)
        except StoreError as error:
            counts["holds_lost"] += 1
            sys.stderr.write(f"{orders.name}: {error}\n")
    if not client.flush(END_TIMEOUT):
        counts["holds_lost"] += 1
    orders.report(counts)


def _publish_again(namespace: Namespace, prompt: "_LongPrompt", counts: Counter[str]) -> None:
    try:
        with prompt.acquire(namespace) as acquired:
            prompt.insert(namespace, acquired, acquired.match.page_count, _ASKED_PAGES)
    except StoreError:
        counts["not_published"] += 1


class _LongPrompt:
    """A prompt that no other client uses."""

    def __init__(self, orders: Orders, page_count: int) -> None:
        self._name = orders.name
        self._page_count = page_count
        # One token more, so that all pages can match.
        self.tokens = tokens_of(_FAR + 8 * orders.number, page_count * PAGE_TOKENS + 1)

    def acquire(self, namespace: Namespace) -> Acquired:
        """Returns what is cached, and slots for the rest; raises ``StoreError`` without slots."""
        acquired = namespace.acquire(self.tokens, total_page_count=self._page_count)
        if acquired.reservation is None:
            acquired.match.release()
            raise acquired.failure or StoreError("no slots")
        return acquired

    def acquire_soon(self, namespace: Namespace) -> Acquired:
        """Returns what ``acquire`` does, once the store has slots; raises ``StoreError``."""
        found: list[Acquired] = []

        def acquired() -> bool:
            with suppress(StoreError):
                found.append(self.acquire(namespace))
            return bool(found)

        if not wait_until(acquired, OPEN_TIMEOUT):
            raise StoreError(f"no slots after {OPEN_TIMEOUT} s")
        return found[0]

    def insert(self, namespace: Namespace, acquired: Acquired, first: int, last: int) -> None:
        """Writes and inserts some pages; raises ``StoreError``."""
        assert acquired.reservation is not None
        whole = self.tokens[:-TOKEN_BYTES]
        keys = list(page_keys(whole, PAGE_TOKENS))
        start = acquired.reservation.start_page
        for index in range(first, last):
            view = namespace.page(acquired.reservation.pages[index - start])
            view[:] = stamped(keys[index], Stamp(self._name, index), len(view))
        part = slice(first * PAGE_TOKENS * TOKEN_BYTES, last * PAGE_TOKENS * TOKEN_BYTES)
        acquired.reservation.insert(whole[part], position=first * PAGE_TOKENS, base=acquired.match)
