"""The cache as a state machine: every verb of the request path.

A method either does all of what it says or raises and changes nothing. Single
owner, not thread-safe: the service calls it under one mutex, with the time.
"""

from array import array
from collections.abc import Sequence as Items

from kvstore.core.answers import grant_of
from kvstore.core.evicting import evict
from kvstore.core.holds import Reservation
from kvstore.core.inserting import (
    announce,
    insert_range,
    note_advance,
    publish_next,
    require_checksums,
    store_next_token,
)
from kvstore.core.lease import Lease, LeaseChange, LeaseState
from kvstore.core.loading import Loading
from kvstore.core.namespace import Namespace
from kvstore.core.values.requests import (
    NO_HINT,
    Caller,
    Grant,
    Inserted,
    Match,
    MatchWishes,
    ReservationRequest,
    ReuseHint,
    Sequence,
)
from kvstore.core.values.runs import runs_of
from kvstore.core.values.slots import Slots, SlotState
from kvstore.core.values.tokens import TOKEN_BYTES
from kvstore.errors import IdReused, InvalidField, LimitExceeded, PoolExhausted

_new_tuple = tuple.__new__


class PrefixCache(Loading):
    """One epoch's cache: match, reserve, insert, release."""

    def reserve(
        self,
        caller: Caller,
        namespace_id: bytes,
        requests: Items[ReservationRequest],
        now: float,
    ) -> list[Grant]:
        """Reserve slots for all requests, evicting what is needed, or raise PoolExhausted."""
        lease = self.member(caller)
        self._require_batch(requests)
        if len({each.reservation_id for each in requests}) < len(requests):
            raise InvalidField(field="reservations", why="an id stands there twice")
        return self._reserve(lease, self._own(lease, namespace_id), requests, now)

    def acquire(
        self,
        caller: Caller,
        namespace_id: bytes,
        sequence: Sequence,
        wishes: MatchWishes,
        *,
        reservation_id: int,
        total_page_count: int,
        now: float,
        to_verify: bool = False,
        yield_idle: float | None = None,
    ) -> tuple[Match, Grant | None]:
        """Match, and reserve the rest of ``total_page_count`` pages; None if it can't be had.

        The whole pages of the rest are announced: others' matches tell of them. With
        ``yield_idle``, where one that advanced within so many seconds is announced already,
        nothing is pinned and nothing reserved, and the answer tells of that.
        A repeated call whose first made a reservation and no pin is answered
        with that first call's miss. ``to_verify`` is as for ``match``.
        """
        lease = self.member(caller)
        namespace = self._own(lease, namespace_id)
        pin_id = wishes.pin_id
        existing = lease.reservations.get(reservation_id)
        start = existing.start_page if existing else 0
        wanted = max(total_page_count - start, 0)
        # Without a frame of Python's for each tuple of an acquire, here and on its way.
        request = _new_tuple(ReservationRequest, (reservation_id, start, wanted))
        missing = self._missing(lease, namespace, request)
        self._require_alive(lease, wishes)
        if existing is None:
            lease.require_room(1 if pin_id in lease.pins else 1 + wishes.hold_count)
        if existing is not None and pin_id not in lease.pins:
            match = Match(0, ())
        else:
            yields = yield_idle if existing is None else None
            match = self._match(lease, namespace, sequence, wishes, now, yields)
            if yields is not None and match.in_flight is not None:
                return match, None
        if existing is None:
            start = match.matched_token_count // namespace.layout.page_tokens
            missing = max(total_page_count - start, 0)
            request = _new_tuple(ReservationRequest, (reservation_id, start, missing))
        grant = self._grant_of(lease, namespace, request, missing, now)
        if existing is None and grant is not None:
            if missing:
                reservation = lease.reservations[reservation_id]
                announce(lease, sequence, pin_id, reservation)
            if to_verify:
                self._made_with(lease, pin_id, reservation_id)
        if not to_verify:
            self._tell(lease, pin_id)
        return match, grant

    def _grant_of(
        self,
        lease: Lease,
        namespace: Namespace,
        request: ReservationRequest,
        missing: int,
        now: float,
    ) -> Grant | None:
        """Reserve the slots that an acquire lacks; None where they cannot be had."""
        try:
            slots = self._take(lease, namespace, missing, now) if missing else array("Q")
        except PoolExhausted:
            return None
        return self._grow(lease, namespace, request, slots, now)

    def insert(
        self,
        caller: Caller,
        reservation_id: int,
        sequence: Sequence,
        now: float,
        *,
        next_token: int | None = None,
        checksums: Items[int] = (),
        hint: ReuseHint | None = None,
    ) -> Inserted:
        """Publish the next pages of a reservation; what was inserted before is answered again.

        The last page may be partial; nothing follows it then. ``next_token`` is
        stored at the end of ``sequence``. ``checksums`` are one for each page that
        ``sequence`` has, zero where there is none, or empty; those of pages that
        are published now are kept. ``hint`` is what is expected of those pages.
        """
        lease = self.member(caller)
        reservation = lease.reservation(reservation_id)
        namespace = reservation.namespace
        length = self.length(sequence.tokens, sequence.position)
        first, end = insert_range(reservation, sequence, length)
        require_checksums(checksums, end - first)
        known = reservation.token_end(namespace.layout.page_tokens) - sequence.position
        cut = min(max(known, 0) * TOKEN_BYTES, len(sequence.tokens))
        if cut:
            start = sequence.position * TOKEN_BYTES
            if reservation.tokens()[start : start + cut] != sequence.tokens[:cut]:
                raise IdReused(id=reservation_id)
        if cut < len(sequence.tokens):
            if reservation.tail_token_count:
                raise IdReused(id=reservation_id)
            fresh = checksums[reservation.whole_end - first :]
            namespace.arena.policy.now = self.events.now = now
            expected = NO_HINT if hint is None else hint.at(now)
            published = publish_next(
                lease, reservation, sequence, sequence.tokens[cut:], fresh, expected
            )
            self._touch(published.at)
            note_advance(reservation, sequence, sequence.tokens[cut:], now)
            if self.wanted is not None:
                self.wanted.inserted(published.at)
            if self.third is not None:
                known = published.at.depth - published.inserted - published.duplicates
                self.third.touched(published.at, known)
            if namespace.arena.retiring:
                self.expel(published.at)
            for counters in (self.counters, namespace.counters, lease.counters):
                counters.inserted_page_count += published.inserted
                counters.duplicate_page_count += published.duplicates
                counters.superseded_page_count += published.superseded
                counters.returned_page_count += published.returned
        if next_token is not None:
            store_next_token(lease, reservation, sequence, next_token)
        flags = reservation.published[first - reservation.start_page : end - reservation.start_page]
        runs = runs_of(reservation.slots()[first:end], namespace.extents)
        return Inserted(runs, sum(flags))

    def release(self, caller: Caller, pin_ids: Items[int], now: float) -> None:
        """Release pins; each id leaves a tombstone, known or not."""
        lease = self.lease_of(caller)
        if len(pin_ids) > self.limits.max_batch_size:
            self._require_batch(pin_ids)
        for pin_id in pin_ids:
            lease.pin_tombstones.leave(pin_id, now)
            pin = lease.pins.get(pin_id)
            if pin is not None:
                self.drop_pin(lease, pin)

    def abort(self, caller: Caller, reservation_ids: Items[int], now: float) -> list[LeaseChange]:
        """End reservations; each id leaves a tombstone, known or not.

        Returns the change where that ended a quarantine.
        """
        lease = self.lease_of(caller)
        self._require_batch(reservation_ids)
        quarantined = lease.change("returned") if lease.state is LeaseState.EXPIRED else None
        for reservation_id in reservation_ids:
            lease.reservation_tombstones.leave(reservation_id, now)
            if reservation_id in lease.reservations:
                self.drop_reservation(lease, lease.reservations[reservation_id])
        if quarantined is None or not quarantined.quarantined_slot_count:
            return []
        return [] if lease.unpublished_count() else [quarantined]

    def _require_batch(self, items: Items[object]) -> None:
        if len(items) > self.limits.max_batch_size:
            maximum = self.limits.max_batch_size
            raise LimitExceeded(limit="max_batch_size", maximum=maximum, value=len(items))

    def _missing(self, lease: Lease, namespace: Namespace, request: ReservationRequest) -> int:
        """Return how many slots a request lacks, after checking that it may have them."""
        reservation_id = request.reservation_id
        lease.reservation_tombstones.require_none(reservation_id, id=reservation_id)
        page_tokens = namespace.layout.page_tokens
        total = (request.start_page + request.page_count) * page_tokens
        # One page more than the longest sequence has: its last may be begun.
        if total >= self.limits.max_tokens + page_tokens:
            raise LimitExceeded(limit="max_tokens", maximum=self.limits.max_tokens, value=total)
        existing = lease.reservations.get(reservation_id)
        if existing is None:
            return request.page_count
        if existing.namespace is not namespace or existing.start_page != request.start_page:
            raise IdReused(id=reservation_id)
        return max(request.page_count - len(existing.reserved), 0)

    def _reserve(
        self,
        lease: Lease,
        namespace: Namespace,
        requests: Items[ReservationRequest],
        now: float,
    ) -> list[Grant]:
        missing = [self._missing(lease, namespace, each) for each in requests]
        lease.require_room(sum(each.reservation_id not in lease.reservations for each in requests))
        slots = self._take(lease, namespace, sum(missing), now)
        grants, cursor = [], 0
        for request, count in zip(requests, missing, strict=True):
            part = slots[cursor : cursor + count]
            grants.append(self._grow(lease, namespace, request, part, now))
            cursor += count
        return grants

    def _grow(
        self,
        lease: Lease,
        namespace: Namespace,
        request: ReservationRequest,
        slots: Slots,
        now: float,
    ) -> Grant:
        """Let a reservation have more slots, made if it is new; return all that it has."""
        reservation = lease.reservations.get(request.reservation_id)
        if reservation is None:
            reservation = Reservation(request.reservation_id, namespace, request.start_page, now)
            lease.add_reservation(reservation)
        if slots:
            reservation.grow(slots)
        return grant_of(reservation)

    def _take(self, lease: Lease, namespace: Namespace, count: int, now: float) -> Slots:
        """Return ``count`` slots reserved now, evicting for them if the lease can use what goes."""
        slots = array("Q")
        if not count:
            return slots
        arena = namespace.arena
        arena.policy.now = self.events.now = now
        usable = lease.usable_extents(arena)
        missing = count - arena.free_count
        possible = usable == arena.lasting and missing <= arena.counts[SlotState.CACHED]
        if missing > 0 and possible:
            evicted = evict(arena.policy.nominate(missing))
            self.counters.evicted_page_count += evicted
            lease.counters.evicted_page_count += evicted
        if self.wanted is not None:
            self.wanted.reserved(arena, count)
        try:
            arena.take(count, usable, into=slots)
        except PoolExhausted:
            for counters in (self.counters, namespace.counters, lease.counters):
                counters.exhausted_count += 1
            raise
        return slots
