"""The commands of a worker process: whole requests, and requests step by step.

Every page that the worker meets is checked.
"""

import ctypes
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any, NamedTuple, cast

from kvstore_client import (
    Acquired,
    Client,
    ClientConfig,
    ContiguousMemory,
    Namespace,
    PageRef,
    Reservation,
    errors,
)
from pages.row_pages import RowPages
from pages.stamped_pages import (
    IDENTITY,
    LAYOUT,
    TOKENS,
    Stamp,
    WrongPage,
    memfd_mappings,
    page_bytes,
    page_count,
    stamps_of,
    write_page,
)
from processes.worker_process import LIMIT, WorkerProcess

# At a barrier.
MEETING_SECONDS = 60.0
# Proven death is the only way back for what a worker holds: no test waits this long.
LONG_TTL = 300.0
# A slow machine is no failure of the store.
CALL_TIMEOUT = 20.0
# Between two looks at whether there is a store at all, or what somebody else computes.
LOOK_SECONDS = 0.05
# What a worker did: "looks", "hits", "misses", "published" pages, and failures by their class.
Tally = Counter[str]


def page_process(
    runtime_dir: Path,
    name: str = "worker",
    *,
    ttl: float = LONG_TTL,
    barrier: Barrier | None = None,
    join: bytes | None = None,
    contiguous: bool = False,
) -> WorkerProcess:
    """Starts a process with a client and a :class:`PageWorker`.

    A ``contiguous`` one maps extents side by side, and finds all pages by their rows.
    """
    config = {"ttl": ttl, "call_timeout": CALL_TIMEOUT, "display_name": name}
    if contiguous:
        config["contiguous_memory"] = ContiguousMemory()
    return WorkerProcess(name, page_worker, runtime_dir, config, barrier, join)


@contextmanager
def page_worker(
    pipe: Connection,
    runtime_dir: Path,
    config: dict[str, Any],
    barrier: Barrier | None,
    join: bytes | None,
) -> "Iterator[PageWorker]":
    """Makes the worker in its process, with its namespace open."""
    with Client(runtime_dir, ClientConfig(**config), join=join) as client:
        namespace = client.namespace(IDENTITY, LAYOUT)
        assert namespace.wait_open(LIMIT), namespace.failure
        by_rows = namespace if client.config.contiguous_memory is None else RowPages(namespace)
        yield PageWorker(client, cast("Namespace", by_rows), told=pipe.poll, barrier=barrier)


@dataclass
class Held:
    """A worker's hold on one sequence, with the writes that it saw and made there."""

    tokens: list[int]
    acquired: Acquired
    seen: list[Stamp]
    own: list[Stamp] = field(default_factory=list)

    @property
    def own_places(self) -> list[PageRef]:
        """The slots to write."""
        return self.acquired.reservation.pages if self.acquired.reservation else []


class Raced(NamedTuple):
    """The result of racing for one sequence.

    ``path`` is where the index has its pages by this worker's answers,
    ``published[k]`` whether page k is this worker's, ``own`` its slots.
    """

    path: list[PageRef]
    published: list[bool]
    own: list[PageRef]


class PageWorker:
    """Writes and reads prompts, and keeps matches and reservations, each under a key.

    ``told`` returns whether a command that goes on is to end.
    """

    def __init__(
        self,
        client: Client,
        namespace: Namespace,
        *,
        told: Callable[[], bool],
        barrier: Barrier | None = None,
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._told = told
        self._barrier = barrier
        self._name = client.config.display_name
        self._numbers = count(1)
        self._held: dict[str, Held] = {}
        self._granted: set[PageRef] = set()
        self._views: list[memoryview] = []

    # The whole of a request.

    def write(self, tokens: list[int], *, in_parts: bool = False) -> Tally:
        """Does as a worker does with a prompt: match, write the rest, insert, release."""
        tally = Tally(looks=1)
        total = page_count(tokens)
        with self._namespace.acquire(tokens, total_page_count=total) as acquired:
            tally.update([_class_of(acquired.failure)] if acquired.failure else [])
            tally.update(["hits" if acquired.match.page_count else "misses"])
            seen = stamps_of(self._namespace, tokens, acquired.match.pages)
            if self._write(tokens, acquired.reservation):
                self._publish(tokens, acquired, tally, step=1 if in_parts else total)
            self._see_again(tokens, acquired, seen)
        return tally

    def write_once(self, tokens: list[int]) -> Tally:
        """Do as write, page by page, after waiting, holding nothing, for whoever computes more."""
        tally = Tally()
        total = page_count(tokens)
        while True:
            with self._namespace.acquire(
                tokens, total_page_count=total, yield_to_in_flight=True
            ) as acquired:
                assert acquired.failure is None, acquired.failure
                if acquired.in_flight is None:
                    stamps_of(self._namespace, tokens, acquired.match.pages)
                    if self._write(tokens, acquired.reservation):
                        self._publish(tokens, acquired, tally, step=1)
                    return tally
                assert not acquired.holds
            tally["yields"] += 1
            time.sleep(LOOK_SECONDS)

    def churn(self, prompts: list[list[int]], rounds: int) -> Tally:
        """Writes all prompts, so often, each time in another order; zero: until told to end."""
        tally = Tally()
        for tokens in self._rounds(prompts, rounds):
            tally += self.write(tokens)
        return tally

    def read(self, prompts: list[list[int]], seed: int) -> Tally:
        """Match prompts until told to end, cut anywhere, by the seed; check each match twice."""
        chosen = random.Random(seed)
        tally = Tally()
        while not self._told():
            tokens = chosen.choice(prompts)
            tokens = tokens[: chosen.randint(LAYOUT.page_tokens + 1, len(tokens))]
            with self._namespace.match(tokens) as match:
                assert match.failure is None, match.failure
                assert len(tokens) > match.token_count == match.page_count * LAYOUT.page_tokens
                tally.update(["looks", "hits" if match.page_count else "misses"])
                seen = stamps_of(self._namespace, tokens, match.pages)
                self._see_again(tokens, Acquired(match), seen)
        return tally

    # Step by step.

    def match(self, key: str, tokens: list[int]) -> int:
        """Match, keep the match, and return how many tokens it has."""
        return self._keep(key, tokens, Acquired(self._namespace.match(tokens)))

    def acquire(self, key: str, tokens: list[int]) -> int:
        """Match, reserve the rest, keep both, and return how many tokens are matched."""
        total = page_count(tokens)
        return self._keep(key, tokens, self._namespace.acquire(tokens, total_page_count=total))

    def fill(self, key: str) -> list[PageRef]:
        """Writes the reserved pages, and returns them."""
        held = self._held[key]
        held.own = self._write(held.tokens, held.acquired.reservation)
        return held.own_places

    def insert(self, key: str, first: int, end: int) -> tuple[list[PageRef], int]:
        """Inserts the sequence's pages from ``first`` to before ``end``, as the store answers."""
        held = self._held[key]
        start, stop = first * LAYOUT.page_tokens, end * LAYOUT.page_tokens
        assert held.acquired.reservation is not None
        return held.acquired.reservation.insert(
            held.tokens[start:stop], position=start, base=held.acquired.match
        )

    def check(self, key: str) -> list[Stamp]:
        """Return the writes of the matched pages; raises WrongPage, also for pages that changed."""
        held = self._held[key]
        stamps = stamps_of(self._namespace, held.tokens, held.acquired.match.pages)
        if stamps != held.seen:
            raise WrongPage(f"published pages changed from {held.seen} to {stamps}")
        return stamps

    def watch(self, key: str) -> int:
        """Checks the matched pages until told to end; returns how often."""
        assert self._held[key].seen
        looks = 0
        while looks == 0 or not self._told():
            self.check(key)
            looks += 1
        return looks

    def own_pages_are_untouched(self, key: str) -> bool:
        """Returns whether all reserved slots still hold what this worker wrote there."""
        held = self._held[key]
        first = held.acquired.match.page_count
        return stamps_of(self._namespace, held.tokens, held.own_places, first=first) == held.own

    def overwrite_duplicates(self, key: str, path: list[PageRef]) -> None:
        """Writes those of the reserved slots that are not in ``path`` once more."""
        held = self._held[key]
        for page in set(held.own_places) - set(path):
            write_page(self._namespace.page(page), held.tokens, 0, self._stamp())

    def matched_pages(self, key: str) -> list[PageRef]:
        """Returns where the matched pages are."""
        return self._held[key].acquired.match.pages

    def release(self, key: str) -> None:
        """Gives back what is held."""
        self._held.pop(key).acquired.release()

    def race(self, key: str, tokens: list[int], *, abreast: bool) -> Raced:
        """Starts with all others and insert page by page; keeps what is held.

        ``abreast``: nobody inserts before all have matched and written.
        """
        self._meet()
        self.acquire(key, tokens)
        self.fill(key)
        if abreast:
            self._meet()
        match = self._held[key].acquired.match
        path, published = list(match.pages), [False] * match.page_count
        for page in range(match.page_count, page_count(tokens)):
            pages, own = self.insert(key, page, page + 1)
            path += pages
            published.append(bool(own))
        return Raced(path, published, self._held[key].own_places)

    def granted(self) -> set[PageRef]:
        """Returns all slots that this worker was ever given to write."""
        return self._granted

    # Questions, views and damage.

    def stamps(self, tokens: list[int]) -> list[Stamp]:
        """Match, and return the writes of the matched pages."""
        with self._namespace.match(tokens) as match:
            return stamps_of(self._namespace, tokens, match.pages)

    def peek(self, tokens: list[int]) -> int:
        """Returns how many tokens a match would cover."""
        return self._namespace.peek(tokens)

    def epoch(self) -> int | None:
        """Returns the epoch of the store that this worker uses, None where it uses none."""
        return self._client.store_epoch if self._client.connected else None

    def share_lease(self) -> bytes:
        """Returns what has another worker join this one's lease."""
        return self._client.share_lease()

    def stamps_at(self, tokens: list[int], pages: list[PageRef]) -> list[Stamp]:
        """Returns the writes of pages that another worker names; raises KeyError for no memory."""
        return stamps_of(self._namespace, tokens, pages)

    def failure_of_a_match(self, tokens: list[int]) -> str:
        """Match, and return why it is a miss."""
        with self._namespace.match(tokens) as match:
            return str(match.failure)

    def mappings(self) -> int:
        """Returns how many extents this process has mapped."""
        return memfd_mappings()

    def reads_zero(self) -> bool:
        """Returns whether all bytes of all extents that are mapped are zero, and that some are."""
        extents = self._namespace.extents.values()
        return any(map(len, extents)) and not any(any(each) for each in extents)

    def places(self) -> dict[int, int]:
        """Returns the first row of each extent that this process has mapped side by side."""
        arena = self._namespace.address_range
        assert arena is not None
        return {key: each.first_row for key, each in arena.extents.items()}

    def rows(self, key: str) -> list[int]:
        """Returns the rows of the reserved pages, which another process may write."""
        arena = self._namespace.address_range
        assert arena is not None
        reservation = self._held[key].acquired.reservation
        assert reservation is not None
        rows: list[int] = arena.rows(reservation.pages.runs).tolist()
        return rows

    def write_rows(self, tokens: list[int], first: int, rows: list[int]) -> None:
        """Writes pages of a sequence from page ``first`` on, at the addresses of these rows."""
        arena = self._namespace.address_range
        assert arena is not None
        for number, row in enumerate(rows, start=first):
            content = page_bytes(tokens, number, self._stamp())
            ctypes.memmove(arena.base + row * arena.row_bytes, content, len(content))

    def keep_view(self) -> None:
        """Keeps a view of every extent that is mapped."""
        self._views = list(self._namespace.extents.values())

    def drop_views(self) -> None:
        """Keeps no view any more."""
        self._views.clear()

    def corrupt(self, key: str, page: int, offset: int) -> None:
        """Breaks the contract: flip one bit of a matched page."""
        self._namespace.page(self.matched_pages(key)[page])[offset] ^= 1

    def fork(self) -> list[str]:
        """Forks; returns the errors of the child's calls, and last how many mappings it has."""
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.write(writer, "\n".join(_in_child(self._client, self._namespace)).encode())
            os._exit(0)
        os.close(writer)
        os.waitpid(pid, 0)
        with os.fdopen(reader) as results:
            return results.read().split("\n")

    def settle(self) -> None:
        """Waits until what was given back has reached the store, for as long as there is one."""
        while self._client.connected and not self._client.flush(LOOK_SECONDS):
            pass

    def _keep(self, key: str, tokens: list[int], acquired: Acquired) -> int:
        assert key not in self._held
        assert acquired.failure is None, acquired.failure
        assert acquired.match.token_count < len(tokens)
        seen = stamps_of(self._namespace, tokens, acquired.match.pages)
        self._held[key] = Held(tokens, acquired, seen)
        return acquired.match.token_count

    def _write(self, tokens: list[int], reservation: Reservation | None) -> list[Stamp]:
        """Writes all pages of a reservation; returns the writes."""
        if reservation is None:
            return []
        self._granted.update(reservation.pages)
        stamps = [self._stamp() for _ in reservation.pages]
        for number, page, stamp in self._numbered(reservation, stamps):
            write_page(self._namespace.page(page), tokens, number, stamp)
        return stamps

    def _numbered(
        self, reservation: Reservation, stamps: list[Stamp]
    ) -> Iterator[tuple[int, PageRef, Stamp]]:
        return zip(count(reservation.start_page), reservation.pages, stamps, strict=False)

    def _stamp(self) -> Stamp:
        return Stamp(self._name, next(self._numbers))

    def _meet(self) -> None:
        assert self._barrier is not None
        self._barrier.wait(MEETING_SECONDS)

    def _see_again(self, tokens: list[int], acquired: Acquired, seen: list[Stamp]) -> None:
        if stamps_of(self._namespace, tokens, acquired.match.pages) != seen:
            raise WrongPage("a page changed while it was pinned")

    def _publish(self, tokens: list[int], acquired: Acquired, tally: Tally, *, step: int) -> None:
        """Inserts what was written, ``step`` pages at a time; a failure of the store is counted."""
        reservation = acquired.reservation
        assert reservation is not None
        end = reservation.start_page + reservation.page_count
        for first in range(reservation.start_page, end, step):
            part = slice(first * LAYOUT.page_tokens, min(first + step, end) * LAYOUT.page_tokens)
            try:
                inserted = reservation.insert(
                    tokens[part], position=part.start, base=acquired.match
                )
            except errors.StoreError as error:
                tally.update([_class_of(error)])
                return
            stamps_of(self._namespace, tokens, inserted.pages, first=first)
            tally["published"] += inserted.published_page_count

    def _rounds(self, prompts: list[list[int]], rounds: int) -> Iterator[list[int]]:
        order = random.Random(self._name)
        for done in count():
            if done == rounds > 0:
                return
            for tokens in order.sample(prompts, len(prompts)):
                if rounds == 0 and self._told():
                    return
                yield tokens


def _class_of(error: Exception) -> str:
    return type(error).__name__


def _in_child(client: Client, namespace: Namespace) -> list[str]:
    calls: list[Callable[[], object]] = [
        lambda: namespace.match(TOKENS),
        lambda: namespace.acquire(TOKENS, total_page_count=4),
        lambda: namespace.reserve(start_page=0, page_count=1),
        lambda: namespace.peek(TOKENS),
        lambda: namespace.extents,
        lambda: namespace.address_range,
        lambda: namespace.wait_open(0),
        lambda: client.connected,
        lambda: client.namespace(IDENTITY, LAYOUT),
        lambda: client.flush(0),
        client.admin.stats,
        client.start,
        client.close,
    ]
    met = []
    for call in calls:
        try:
            met.append(repr(call()))
        except errors.ForkedClient as error:
            met.append(type(error).__name__)
    return [*met, str(memfd_mappings())]
