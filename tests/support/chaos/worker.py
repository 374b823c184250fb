"""A light worker of a chaos run: requests like an engine's, on patterned pages, without a model."""

import random
import time
from collections import deque
from typing import NamedTuple

from chaos.control import Control, Phase
from chaos.load import PAGE_TOKENS, Load
from chaos.pages import Pages, Seen
from chaos.report import Report
from kvstore_client import (
    Acquired,
    Client,
    ClientConfig,
    Match,
    Namespace,
    NamespaceIdentity,
    PagedContent,
    PageLayout,
    Reservation,
)
from kvstore_client.errors import PoolExhausted, StoreError, StoreUnavailable
from kvstore_client.fault_points import plan_faults
from support.page_stamps import PageKey, next_token_of, page_keys

IDENTITY = NamespaceIdentity(b"chaos", display_name="chaos")
# 4 KiB, as many as a page of two tokens of the tiny model: light workers and engines share a pool.
LAYOUT = PageLayout.paged(PAGE_TOKENS, PagedContent(4, 2, 16, "float32"))
# Looking whether there is a store again, in seconds.
LOOK = 0.1
# Requests held beside the newest one.
HELD = 5
# Pages to an insert.
STEP = 3
# Tokens a second, where hosts share an engine: computing takes longer than a load.
SLOW_PREFILL = 20
# Between two looks at what another computes, and after a failure, in seconds.
YIELD = 0.01
# Between two requests, where hosts share an engine: a store copies pages to it in the time that
# its calls leave.
PAUSE = 0.03


class Orders(NamedTuple):
    """The orders that one worker gets at its start. ``faults`` is as ``plan_faults`` takes it.

    ``kind`` is what that is called, where it is one. A worker leaves after ``life``
    requests; zero: at the end. ``other_dir`` is the store of another host that shares the engine.
    """

    number: int
    name: str
    role: str
    runtime_dir: str
    seed: int
    life: int = 0
    faults: str = ""
    kind: str = ""
    ttl: float = 1.0
    other_dir: str = ""


class Kept(NamedTuple):
    """Something held, and the bytes of its pages."""

    held: Acquired | Match
    seen: Seen


def config_of(orders: Orders) -> ClientConfig:
    """Returns a client's settings: soon back after the store was away."""
    return ClientConfig(
        display_name=orders.name, ttl=orders.ttl, call_timeout=1.0, longest_backoff=0.25
    )


class LightWorker:
    """Requests, one after another, some of them held for a while. One thread uses it."""

    def __init__(
        self, namespace: Namespace, load: Load, orders: Orders, control: Control, report: Report
    ) -> None:
        self._namespace = namespace
        self._load = load
        self._orders = orders
        self._control = control
        self._report = report
        self._pages = Pages(namespace, orders.name, report)
        self._chosen = random.Random(orders.seed)
        self._kept: deque[Kept] = deque()

    def serve(self) -> None:
        """Work until the run ends or this worker's life is over; then give everything back."""
        served = 0
        while self._control.phase < Phase.END and not 0 < self._orders.life <= served:
            if self._namespace.wait_open(LOOK):
                served += 1
            else:
                self._report.counts["looks_without_a_store"] += 1
            if self._control.phase >= Phase.CALM:
                plan_faults("")
            self.request()
            if self._orders.other_dir:
                time.sleep(PAUSE)
        if self._control.phase >= Phase.CALM:
            plan_faults("")
        while self._kept:
            self._let_go()
        self._report.send()

    def request(self) -> None:
        """Serves one request: check what is cached, and writes and insert the rest."""
        while len(self._kept) > self._chosen.randrange(HELD + 1):
            self._let_go()
        tokens = self._load.draw(self._chosen, self._control.begun)
        keys = list(page_keys(tokens, PAGE_TOKENS))
        kind = self._chosen.choices((self._acquire, self._match, self._reserve), (6, 3, 2))[0]
        self._report.counts["requests"] += 1
        try:
            kind(tokens, keys)
        except StoreError as error:
            self._failed(error)
        self._report.send()

    def _acquire(self, tokens: bytes, keys: list[PageKey]) -> None:
        greedy = self._chosen.random() < 0.3
        # Some wait for what another computes, and some of those for too short.
        patience = self._chosen.choice((0, 0, 2, 20))
        while True:
            begun = time.monotonic()
            acquired = self._namespace.acquire(
                tokens,
                total_page_count=len(keys),
                accept_next_token=greedy,
                yield_to_in_flight=patience > 0,
            )
            self._report.took(time.monotonic() - begun)
            if patience == 0 or acquired.in_flight is None:
                break
            assert not acquired.holds
            self._report.counts["yields"] += 1
            patience -= 1
            time.sleep(YIELD)
        seen = self._keep(acquired, tokens, keys, acquired.match)
        if acquired.failure is not None:
            return
        if acquired.reservation is not None:
            self._publish(tokens, keys, acquired.match, acquired.reservation, seen)
        elif acquired.match.page_count < len(keys):
            self._report.counts["full_pools"] += 1

    def _match(self, tokens: bytes, keys: list[PageKey]) -> None:
        begun = time.monotonic()
        match = self._namespace.match(tokens)
        self._report.took(time.monotonic() - begun)
        self._keep(match, tokens, keys, match)

    def _reserve(self, tokens: bytes, keys: list[PageKey]) -> None:
        """Match, then reserve one page and grow, as an engine does that decodes."""
        match = self._namespace.match(tokens)
        seen = self._keep(match, tokens, keys, match)
        rest = len(keys) - match.page_count
        if match.failure is not None or rest == 0:
            return
        with self._namespace.reserve(start_page=match.page_count, page_count=1) as reservation:
            reservation.grow(rest)
            own: Seen = {}
            self._publish(tokens, keys, match, reservation, own)
            self._pages.see_again("reservation", own)
        self._pages.see_again("match", seen)

    def _keep(
        self, held: Acquired | Match, tokens: bytes, keys: list[PageKey], match: Match
    ) -> Seen:
        """Keeps what is held from now on, and check what was matched."""
        seen: Seen = {}
        self._kept.append(Kept(held, seen))
        if match.failure is not None:
            self._failed(match.failure)
            return seen
        self._report.counts["hits" if match.page_count else "misses"] += 1
        seen.update(self._pages.check_match(tokens, keys, match))
        return seen

    def _publish(
        self,
        tokens: bytes,
        keys: list[PageKey],
        match: Match,
        reservation: Reservation,
        seen: Seen,
    ) -> None:
        """Writes and insert some pages at a time; what was written is added to ``seen``."""
        seen.update(self._pages.write(keys, reservation))
        end = reservation.start_page + reservation.page_count
        for first in range(reservation.start_page, end, STEP):
            last = min(first + STEP, end)
            part = tokens[first * PAGE_TOKENS * 4 : last * PAGE_TOKENS * 4]
            inserted = reservation.insert(
                part,
                position=first * PAGE_TOKENS,
                base=match,
                next_token=next_token_of(tokens) if last == end else None,
            )
            self._report.counts["pages_published"] += inserted.published_page_count
            mapped = [page for page in inserted.pages if page.extent_id in self._namespace.extents]
            if len(mapped) == len(inserted.pages):
                seen.update(self._pages.read("insert", keys, mapped, first=first))

    def _let_go(self) -> None:
        """Sees once more what was held the longest, and gives it back."""
        held, seen = self._kept.popleft()
        with held:
            self._pages.see_again("release", seen)

    def _failed(self, error: StoreError) -> None:
        if isinstance(error, StoreUnavailable):
            # The engine would compute now.
            time.sleep(YIELD)
        name = "full_pools" if isinstance(error, PoolExhausted) else f"failed: {_name(error)}"
        self._report.counts[name] += 1


def serve(load: Load, orders: Orders, control: Control, report: Report) -> None:
    """Be a light worker until the end."""
    with Client(orders.runtime_dir, config_of(orders)) as client:
        namespace = client.namespace(IDENTITY, LAYOUT)
        if orders.other_dir:
            namespace.prefill_tokens_per_second = SLOW_PREFILL
        LightWorker(namespace, load, orders, control, report).serve()


def _name(error: StoreError) -> str:
    return type(error).__name__
