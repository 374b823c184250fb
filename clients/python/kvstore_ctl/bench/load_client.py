"""One client of kvstore-ctl bench: a process that calls the store as an engine does."""

import os
import signal
import time
from array import array
from collections import deque
from collections.abc import Callable
from random import Random
from threading import BrokenBarrierError, Event
from typing import NamedTuple, Protocol, TypeVar

from kvstore_client.client import Client
from kvstore_client.errors import StoreError
from kvstore_client.namespace import Namespace
from kvstore_ctl.bench.scratch_namespace import PAGE_TOKENS, ScratchSpec

CALLS = ("match", "acquire", "insert", "release", "evict")
# Seconds: each process imports the client before it can begin.
START_SECONDS = 60.0
# The share of calls that only match, and the share of new prompts among the others.
MATCH_SHARE = 0.3
NEW_SHARE = 0.5
BROKEN = "not all clients could begin"
Result = TypeVar("Result")


class Barrier(Protocol):
    """A barrier at which all clients wait, so that they begin together."""

    def wait(self, timeout: float | None = None) -> int:
        """Waits for the others; raises ``BrokenBarrierError``."""
        ...

    def abort(self) -> None:
        """Ends the others' wait with an error."""
        ...


class Load(NamedTuple):
    """The load of one client. Pages are counts, of :data:`PAGE_TOKENS` tokens.

    Each prompt is one of ``prefixes`` prefixes, which all clients share, and a suffix of the
    client's own. The client keeps ``kept_suffixes`` suffixes cached.
    """

    spec: ScratchSpec
    seconds: float
    prefixes: int
    prefix_pages: int
    suffix_pages: int
    kept_suffixes: int
    seed: int


class Report(NamedTuple):
    """The measurements of one client: seconds of each call by its name, and counts.

    ``misses`` counts the calls that failed or found no slots.
    """

    seconds: float
    calls: dict[str, "array[float]"]
    asked_tokens: int
    matched_tokens: int
    misses: int


_barrier: list[Barrier] = []
_command: list[int] = []
_interrupted = Event()


def begin(barrier: Barrier, command: int) -> None:
    """Prepares a client's process. Ctrl-C ends it in the same way as the end of its time.

    The end of the process ``command``, which started it, does too.
    """
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, lambda *_: _interrupted.set())
    _barrier.append(barrier)
    _command.append(command)


def run_client(load: Load, number: int) -> Report | str:
    """Calls the store for ``load.seconds``; returns the report, or the reason of a failure."""
    try:
        client, namespace = load.spec.open(f"kvstore-ctl bench {number}")
    except (StoreError, ValueError) as error:
        _barrier[0].abort()
        return str(error)
    try:
        _barrier[0].wait(START_SECONDS)
        return LoadClient(client, namespace, load, number).run()
    except BrokenBarrierError:
        return BROKEN
    except StoreError as error:
        return str(error)
    finally:
        client.close()


def _is_wanted() -> bool:
    return not _interrupted.is_set() and os.getppid() == _command[0]


class LoadClient:
    """A client that writes no bytes into its pages, and removes its oldest ones."""

    def __init__(self, client: Client, namespace: Namespace, load: Load, number: int) -> None:
        self._client = client
        self._namespace = namespace
        self._load = load
        self._number = number
        self._random = Random(f"{load.seed} {number}")  # noqa: S311  # repeatable, not secret
        self._made = 0
        self._kept: deque[list[int]] = deque()
        self._calls: dict[str, array[float]] = {each: array("d") for each in CALLS}
        self._asked = self._matched = self._misses = 0

    def run(self) -> Report:
        """Calls the store until the time is over."""
        begun = time.monotonic()
        while (spent := time.monotonic() - begun) < self._load.seconds and _is_wanted():
            if self._kept and self._random.random() < MATCH_SHARE:
                self._match(self._random.choice(self._kept))
            elif self._kept and self._random.random() > NEW_SHARE:
                self._acquire(self._random.choice(self._kept))
            else:
                self._make_room()
                prompt = self._new_prompt()
                self._acquire(prompt)
                self._kept.append(prompt)
        return Report(spent, self._calls, self._asked, self._matched, self._misses)

    def _new_prompt(self) -> list[int]:
        """Returns a new prompt, with one more token that no match covers."""
        self._made += 1
        prefix = self._random.randrange(self._load.prefixes)
        beginning = [prefix] * (self._load.prefix_pages * PAGE_TOKENS)
        key = self._number << 24 | self._made % (1 << 24)
        return [*beginning, *[key] * (self._load.suffix_pages * PAGE_TOKENS), 0]

    def _make_room(self) -> None:
        if len(self._kept) < self._load.kept_suffixes:
            return
        oldest = self._kept.popleft()
        first_of_its_own = oldest[: (self._load.prefix_pages + 1) * PAGE_TOKENS]
        space = self._namespace.namespace_id
        self._timed("evict", lambda: self._client.admin.evict_prefix(space, first_of_its_own))

    def _match(self, prompt: list[int]) -> None:
        match = self._timed("match", lambda: self._namespace.match(prompt))
        self._count(prompt, match.token_count, failed=match.failure is not None)
        self._timed("release", match.release)

    def _acquire(self, prompt: list[int]) -> None:
        pages = self._load.prefix_pages + self._load.suffix_pages
        acquired = self._timed(
            "acquire", lambda: self._namespace.acquire(prompt, total_page_count=pages)
        )
        match, reservation = acquired.match, acquired.reservation
        try:
            missing = pages - match.page_count
            self._count(prompt, match.token_count, failed=missing > 0 and reservation is None)
            if reservation is not None and missing:
                start = match.page_count * PAGE_TOKENS
                tokens = prompt[start : pages * PAGE_TOKENS]
                self._timed(
                    "insert", lambda: reservation.insert(tokens, position=start, base=match)
                )
        finally:
            self._timed("release", acquired.release)

    def _count(self, prompt: list[int], matched: int, *, failed: bool) -> None:
        self._asked += len(prompt)
        self._matched += matched
        self._misses += failed

    def _timed(self, name: str, call: Callable[[], Result]) -> Result:
        begun = time.perf_counter()
        try:
            return call()
        finally:
            self._calls[name].append(time.perf_counter() - begun)
