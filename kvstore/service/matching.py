"""Match and acquire: bring pages nearer, find them, read some, and answer.

A few pages of an answer are read and compared with their checksums before it is given. That
happens outside the store's mutex, under the pin that the match took.
"""

from collections.abc import Callable
from contextlib import suppress
from random import Random
from threading import Lock
from time import sleep
from typing import NamedTuple

import structlog
from xxhash import xxh3_64_intdigest

from kvstore import background, tracing
from kvstore.core import (
    Caller,
    Grant,
    Identity,
    Match,
    MatchOptions,
    Prefetched,
    PrefixCache,
    Sequence,
)
from kvstore.core.tiers.moves import Move
from kvstore.core.values.slots import INDEX_BITS, INDEX_MASK
from kvstore.core.verbs.verify import Inspection, PageCheck
from kvstore.errors import KVStoreError, StoreDraining
from kvstore.service.clock import Clock
from kvstore.service.leases import Leases
from kvstore.service.log_budget import LogBudget
from kvstore.service.memory.arena_growth import Growth
from kvstore.service.page_io.loads.load_call import NO_PART, DiskPart, LoadTerms
from kvstore.service.page_io.loads.path_search import PathGap
from kvstore.service.page_io.memory_mover import BATCH_PAGES, Mover
from kvstore.service.page_io.tier3 import Tier3
from kvstore.service.serving_turn import let_others_serve
from kvstore.storage.errors import CudaFailed
from kvstore.storage.memory_tiers import Tiers

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

# Pages that are read together, of an answer that has as many.
AT_ONCE = 4


class Sampler:
    """Chooses the pages of an answer to read: ``rate`` of all, each as likely as every other.

    Not thread-safe: used under the store's mutex. ``rng`` decides, one of its own if
    none is given.
    """

    def __init__(self, rate: float = 0.0, rng: Random | None = None) -> None:
        self.rate = rate
        self._rng = rng or Random()  # noqa: S311  # which pages, not a secret

    def pick(self, page_count: int) -> list[int]:
        """Returns some numbers below ``page_count``, in rising order.

        Picks ``rate * page_count`` pages on average. If that is below ``AT_ONCE``, it picks
        either none or ``AT_ONCE``: the first page read costs more than the next.
        """
        wanted = self.rate * page_count
        least = min(AT_ONCE, page_count)
        if wanted < least:
            if self._rng.random() * least >= wanted:
                return []
            count = least
        else:
            count = int(wanted)
            count += self._rng.random() < wanted - count
        # At even distances, from a random one on: a draw for each takes longer than a match.
        first = int(self._rng.random() * page_count)
        return [(number * page_count + first) // count for number in range(count)]


class _Reading(NamedTuple):
    """The pages that cannot be trusted, and how many pages were read."""

    corrupt: list[PageCheck]
    read_count: int


class _Asked(NamedTuple):
    """The arguments of a match."""

    caller: Caller
    namespace_id: bytes
    sequence: Sequence
    options: MatchOptions


class _Answer(NamedTuple):
    """A match, the slots for the rest, and the pages to read before the answer, if any."""

    match: Match
    grant: Grant | None
    checks: Inspection | None


class Matching:
    """Answers matches and acquires. Thread-safe. Raises what the core's methods raise.

    ``mutex`` is the store's, under which ``cache`` may be used.
    """

    def __init__(
        self,
        cache: PrefixCache,
        mutex: Lock,
        *,
        clock: Clock,
        leases: Leases,
        memory: Tiers,
        sampler: Sampler,
        growth: Growth,
        mover: Mover,
        tier3: Tier3,
    ) -> None:
        self._cache = cache
        self._mutex = mutex
        self._clock = clock
        self._leases = leases
        self._memory = memory
        self._sampler = sampler
        self._growth = growth
        self._mover = mover
        self._tier3 = tier3
        self._log_lock = Lock()
        self._lines = LogBudget(clock)

    def match(
        self,
        caller: Caller,
        namespace_id: bytes,
        sequence: Sequence,
        options: MatchOptions,
        remaining: float | None = None,
    ) -> Match:
        """Pins the longest cached prefix and returns it. A miss takes no pin.

        First loads what tier 3 has beyond that, within most of the ``remaining``
        seconds to the call's deadline. Pages that are found corrupt leave the index and are
        not answered. Raises StoreDraining, besides the errors of the core.
        """
        asked = _Asked(caller, namespace_id, sequence, options)

        def find() -> _Answer:
            pick = self._sampler.pick if self._sampler.rate else None
            match, checks = self._cache.match_with_checks(*asked, self._clock(), pick)
            return _Answer(match, None, checks)

        return self._answer(asked, remaining, find)[0]

    def acquire(
        self,
        caller: Caller,
        namespace_id: bytes,
        sequence: Sequence,
        options: MatchOptions,
        *,
        reservation_id: int,
        total_page_count: int,
        remaining: float | None = None,
        yield_idle: float | None = None,
    ) -> tuple[Match, Grant | None]:
        """Matches, and reserves the rest of ``total_page_count`` pages, or None of them.

        Loads and verifies as ``match`` does. With ``yield_idle`` it neither pins nor reserves
        if another reservation, which advanced within so many seconds, is to compute more of
        the sequence; the answer reports it. Raises StoreDraining, besides the errors of the
        core.
        """
        asked = _Asked(caller, namespace_id, sequence, options)

        def find() -> _Answer:
            match, grant, checks = self._cache.acquire_with_checks(
                *asked,
                reservation_id=reservation_id,
                total_page_count=total_page_count,
                now=self._clock(),
                pick=self._sampler.pick if self._sampler.rate else None,
                yield_idle=yield_idle,
            )
            lacking = 0
            if grant is None and (yield_idle is None or match.in_flight is None):
                lacking = total_page_count - sum(len(run.indexes) for run in match.runs)
            if lacking:
                # What it matched stays, whatever is evicted for the rest.
                kept = sum(len(run.indexes) for run in match.runs if run.tier == 1)
                self._note(namespace_id, lacking, kept)
            elif grant is not None and grant.runs:
                # A whole hit takes no slot, and lacks none.
                self._note(namespace_id)
            return _Answer(match, grant, checks)

        return self._answer(asked, remaining, find)

    def prefetch(
        self,
        who: Caller | Identity,
        namespace_id: bytes,
        sequence: Sequence,
        *,
        may_evict: bool = False,
    ) -> Prefetched:
        """Begins to load what tier 3 has of a sequence, and returns what a match would find.

        Waits for no load, pins nothing, and counts nothing. It evicts only what a match may evict,
        and only if it ``may_evict``. ``who`` is a lease, or an operator, whose sequence has no
        base. Raises StoreDraining, besides the errors of the core.
        """
        self._leases.require_open()
        loader = self._tier3.loader
        return loader.prefetch(who, namespace_id, sequence, may_evict=may_evict)

    def _with_tier_3(self, match: Match, part: DiskPart, options: MatchOptions) -> Match:
        """Adds the tokens that tier 3 has beyond the match, and those of it that it had alone."""
        matched = match.matched_token_count
        self._tier3.loader.note_match(part, matched, options.prefill_tokens_per_second)
        return match._replace(
            tier_3_token_count=max(part.end - matched, 0),
            tier_3_loaded_token_count=part.loaded(matched),
            remote_loaded_token_count=part.shared_loaded(matched),
        )

    def _answer(
        self, asked: _Asked, remaining: float | None, find: Callable[[], _Answer]
    ) -> tuple[Match, Grant | None]:
        """Brings pages nearer and returns what ``find`` finds, called under the mutex.

        Without promotion, a call whose whole pages are all cached takes the mutex once.
        """
        self._leases.require_open()
        answer, part = None, NO_PART
        state = self._cache.state
        promotes, has_disk = state.tier_policy.promote, state.disk is not None
        if promotes or has_disk:
            terms, gap = LoadTerms.of(remaining, self._clock()), None
            if has_disk:
                with self._mutex:
                    gap = self._tier3.loader.locate(*asked)
                    if gap is None and not promotes:
                        answer = self._found(asked, find)
            if answer is None:
                part = self._bring(asked, terms, gap)
        while True:
            if answer is None:
                with self._mutex:
                    answer = self._found(asked, find)
            match, grant, checks = answer
            if checks is None or self._settle(checks, self._read(checks)):
                return self._with_tier_3(match, part, asked.options) if part.end else match, grant
            answer = None

    def _found(self, asked: _Asked, find: Callable[[], _Answer]) -> _Answer:
        """Returns what ``find`` finds. Under the mutex."""
        answer = find()
        if self._cache.state.disk is not None or self._cache.state.wanted is not None:
            self._note_use(asked.namespace_id)
        return answer

    def _bring(self, asked: _Asked, terms: LoadTerms, gap: PathGap | None) -> DiskPart:
        """Brings pages of lower tiers nearer; returns the tokens that only tier 3 had.

        ``gap`` are the pages to look for in tier 3, if there are any. Raises StoreDraining
        if the device failed for good meanwhile.
        """
        part = NO_PART
        if gap is not None:
            part = self._tier3.loader.load(*asked, terms, gap)
        if self._cache.state.tier_policy.promote:
            self._promote(asked)
        self._leases.require_open()
        return part

    def _promote(self, asked: _Asked) -> None:
        """Copies to tier 1 what a match would find in tier 2 alone.

        Plans it in several steps, so that other calls get in between. The moves of all steps are
        under way before the first is finished, so no step takes the room of an earlier one.
        """
        moves: list[Move] = []
        # An error of the call is the match's to raise: a repeated call has its answer.
        with suppress(KVStoreError):
            while planned := self._plan_promotion(asked):
                moves += planned
        if moves:
            let_others_serve()
        self._mover.carry_out(moves)

    def _plan_promotion(self, asked: _Asked) -> list[Move]:
        with self._mutex:
            return self._cache.plan_promotion(*asked, BATCH_PAGES)

    def _note_use(self, namespace_id: bytes) -> None:
        """Wakes whoever moves pages, after a match changed what is near and what is far."""
        if self._cache.state.wanted is not None:
            # Promotions need slots, and there may be none.
            self._note(namespace_id)
            self._mover.note()
        if self._cache.state.disk is not None:
            self._tier3.note()

    def _note(self, namespace_id: bytes, wanted: int = 0, kept: int = 0) -> None:
        self._growth.note(self._cache.namespaces[namespace_id].arena, wanted, kept)

    def _read(self, checks: Inspection) -> _Reading | None:
        """Reads the pages of a match's checks, outside the mutex.

        A page cannot be trusted if it has other bytes than were written, or if a working device
        cannot read it. If the device has failed for good, a failed read says nothing about its
        pages: returns None.
        """
        let_others_serve()
        with tracing.span("verify", pages=len(checks.pages)):
            corrupt, read_count = [], 0
            extent_id, reader = -1, None
            for page in checks.pages:
                slot, _, checksum, _, _ = page
                if slot >> INDEX_BITS != extent_id:
                    extent_id = slot >> INDEX_BITS
                    reader = self._memory.reader(extent_id)
                if reader is None:
                    continue
                try:
                    content = reader(slot & INDEX_MASK)
                except CudaFailed as error:
                    if self._memory.device.is_lost(error):
                        break
                    read_count += 1
                    corrupt.append(page)
                    self._log(log.warning, "page_unreadable", checks, page, why=str(error))
                    continue
                if content is not None:
                    read_count += 1
                    if xxh3_64_intdigest(content) != checksum:
                        corrupt.append(page)
        return None if self._memory.device.lost else _Reading(corrupt, read_count)

    def _settle(self, checks: Inspection, reading: _Reading | None) -> bool:
        """Removes corrupt pages. Returns False if the answer has to be found anew.

        By then, a page of the answer has left the index. Raises what the core's ``settle`` raises,
        and StoreDraining if the pages' device has failed for good.
        """
        if reading is None:
            with self._mutex:
                self._cache.withdraw(checks)
            raise StoreDraining
        corrupt, read_count = reading
        removed: list[PageCheck] = []
        try:
            with self._mutex:
                removed = self._cache.remove_corrupt(checks, corrupt, read_count)
                return self._cache.settle(checks, corrupt)
        finally:
            if corrupt:
                # A remote engine that hangs must not hold a match back.
                self._tier3.removals.settle(waits_for_shared=False)
            for page in removed:
                self._log(log.error, "page_corrupt", checks, page)

    def remove_condemned(self) -> None:
        """Removes what follows pages that were found corrupt, a part under the mutex at a time."""
        more = bool(self._cache.state.condemned)
        while more:
            with self._mutex:
                self._cache.events.now = self._clock()
                more = self._cache.remove_condemned()
            sleep(background.PAUSE)
            background.give_way()

    def _log(
        self,
        write: Callable[..., object],
        event: str,
        checks: Inspection,
        page: PageCheck,
        **fields: object,
    ) -> None:
        """Logs what is wrong with a page, without its tokens and its bytes.

        Bounded: a tenant that gives wrong checksums could cause a line with each call.
        """
        with self._log_lock:
            self._lines.write(
                write,
                event,
                namespace_id=checks.namespace_id.hex(),
                extent_id=page.slot >> INDEX_BITS,
                slot=page.slot & INDEX_MASK,
                page_position=page.page_position,
                **fields,
            )
