"""Reserve and acquire: slots for the pages that are not cached, evicting to make room."""

from array import array
from collections.abc import Sequence as Items

from kvstore.core.cache_state import CacheState
from kvstore.core.leases.holds import Reservation
from kvstore.core.leases.journaling import generations_in, write_reservation
from kvstore.core.leases.lease import Lease
from kvstore.core.pool.namespace import Namespace
from kvstore.core.pool.pages import evict
from kvstore.core.values.requests import (
    Caller,
    Grant,
    Match,
    MatchOptions,
    ReservationRequest,
    Sequence,
)
from kvstore.core.values.runs import runs_of
from kvstore.core.values.slots import Slots, SlotState
from kvstore.core.verbs.insert import announce
from kvstore.core.verbs.match import Matching, Pick
from kvstore.core.verbs.release import require_batch
from kvstore.core.verbs.verify import Inspection
from kvstore.errors import IdReused, InvalidField, LimitExceeded, PoolExhausted


class Reserving:
    """Reserves slots, alone or together with a match."""

    def __init__(self, state: CacheState, matching: Matching) -> None:
        self._state = state
        self._matching = matching

    def reserve(
        self,
        caller: Caller,
        namespace_id: bytes,
        requests: Items[ReservationRequest],
        now: float,
    ) -> list[Grant]:
        """Reserves slots for all requests, evicting as needed, or raises PoolExhausted."""
        lease = self._state.member(caller)
        require_batch(self._state, requests)
        if len({each.reservation_id for each in requests}) < len(requests):
            raise InvalidField(field="reservations", why="an id stands there twice")
        namespace = self._state.own(lease, namespace_id)
        missing = [self._missing(lease, namespace, each) for each in requests]
        lease.require_room(sum(each.reservation_id not in lease.reservations for each in requests))
        slots = self._take(lease, namespace, sum(missing), now)
        grants, cursor = [], 0
        for request, count in zip(requests, missing, strict=True):
            part = slots[cursor : cursor + count]
            grants.append(self._grow(lease, namespace, request, part, now))
            cursor += count
        return grants

    def acquire(
        self,
        caller: Caller,
        namespace_id: bytes,
        sequence: Sequence,
        options: MatchOptions,
        *,
        reservation_id: int,
        total_page_count: int,
        now: float,
        yield_idle: float | None = None,
    ) -> tuple[Match, Grant | None]:
        """Matches, and reserves the rest of ``total_page_count`` pages, or None of them.

        Announces the whole pages of the rest, so that the matches of others report them. With
        ``yield_idle`` it pins and reserves nothing if a prefill that advanced within so many
        seconds is announced already; the answer reports that prefill. If the first call made a
        reservation and no pin, a repeated call gets that first call's miss.
        """
        match, grant, _ = self.acquire_with_checks(
            caller,
            namespace_id,
            sequence,
            options,
            reservation_id=reservation_id,
            total_page_count=total_page_count,
            now=now,
            yield_idle=yield_idle,
        )
        return match, grant

    def acquire_with_checks(
        self,
        caller: Caller,
        namespace_id: bytes,
        sequence: Sequence,
        options: MatchOptions,
        *,
        reservation_id: int,
        total_page_count: int,
        now: float,
        pick: Pick | None = None,
        yield_idle: float | None = None,
    ) -> tuple[Match, Grant | None, Inspection | None]:
        """Does as ``acquire``. Returns an inspection too, as ``match_with_checks`` does."""
        lease = self._state.member(caller)
        namespace = self._state.own(lease, namespace_id)
        pin_id = options.pin_id
        existing = lease.reservations.get(reservation_id)
        start = existing.start_page if existing else 0
        wanted = max(total_page_count - start, 0)
        request = ReservationRequest(reservation_id, start, wanted)
        missing = self._missing(lease, namespace, request)
        lease.require_pins_alive(options)
        if existing is None:
            pins = 0 if pin_id in lease.pins else 1 + (options.source_pin_id is not None)
            lease.require_room(pins + 1)
        if existing is not None and pin_id not in lease.pins:
            match, inspection = Match(0, ()), None
        else:
            yields = yield_idle if existing is None else None
            match, inspection = self._matching.match_in(
                lease, namespace, sequence, options, now, pick, yields
            )
            if yields is not None and match.in_flight is not None:
                return match, None, None
        if existing is None:
            start = match.matched_token_count // namespace.layout.page_tokens
            missing = max(total_page_count - start, 0)
            request = ReservationRequest(reservation_id, start, missing)
        grant = self._grant_of(lease, namespace, request, missing, now)
        if existing is None and grant is not None:
            if missing:
                reservation = lease.reservations[reservation_id]
                announce(lease, sequence, pin_id, reservation)
            if inspection is not None and inspection.pin.unanswered is not None:
                inspection.pin.unanswered.reservation_id = reservation_id
        return match, grant, inspection

    def _grant_of(
        self,
        lease: Lease,
        namespace: Namespace,
        request: ReservationRequest,
        missing: int,
        now: float,
    ) -> Grant | None:
        """Reserves the slots that an acquire lacks; returns None if the pool has too few."""
        try:
            slots = self._take(lease, namespace, missing, now) if missing else array("Q")
        except PoolExhausted:
            return None
        return self._grow(lease, namespace, request, slots, now)

    def _missing(self, lease: Lease, namespace: Namespace, request: ReservationRequest) -> int:
        """Returns how many slots a request lacks, after a check that it may have them."""
        reservation_id = request.reservation_id
        lease.reservation_tombstones.require_none(reservation_id, id=reservation_id)
        page_tokens = namespace.layout.page_tokens
        total = (request.start_page + request.page_count) * page_tokens
        maximum = self._state.limits.max_tokens
        # One page more than the longest sequence has: its last page may be begun.
        if total >= maximum + page_tokens:
            raise LimitExceeded(limit="max_tokens", maximum=maximum, value=total)
        existing = lease.reservations.get(reservation_id)
        if existing is None:
            return request.page_count
        if existing.namespace is not namespace or existing.start_page != request.start_page:
            raise IdReused(id=reservation_id)
        return max(request.page_count - len(existing.reserved), 0) + existing.moved_count

    def _take(self, lease: Lease, namespace: Namespace, count: int, now: float) -> Slots:
        """Returns ``count`` slots, now reserved. Evicts only if the lease can use the slots."""
        slots = array("Q")
        if not count:
            return slots
        state, arena = self._state, namespace.arena
        arena.policy.now = state.events.now = now
        usable = lease.usable_extents(arena)
        missing = count - arena.free_count
        enough = missing <= arena.counts[SlotState.CACHED]
        if missing > 0 and enough and usable == arena.lasting:
            evicted = evict(arena.policy.nominate(missing))
            state.counters.evicted_page_count += evicted
            lease.counters.evicted_page_count += evicted
        if state.wanted is not None:
            state.wanted.reserved(arena, count)
        try:
            arena.take(count, usable, into=slots)
        except PoolExhausted:
            for counters in (state.counters, namespace.counters, lease.counters):
                counters.exhausted_count += 1
            raise
        return slots

    def _grow(
        self,
        lease: Lease,
        namespace: Namespace,
        request: ReservationRequest,
        slots: Slots,
        now: float,
    ) -> Grant:
        """Adds slots to a reservation, made if it is new; returns all that it has."""
        journal = self._state.journal
        known = lease.reservations.get(request.reservation_id)
        reservation = known
        if reservation is None:
            reservation = Reservation(request.reservation_id, namespace, request.start_page, now)
            lease.add_reservation(reservation)
        if slots:
            reservation.grow(slots)
        reserved = reservation.reserved
        runs = runs_of(reserved, namespace.arena.extents) if reserved else ()
        if journal is not None and (slots or known is None):
            write_reservation(journal, lease, reservation, generations_in(runs))
        return Grant(reservation.hold_id, reservation.start_page, runs)
