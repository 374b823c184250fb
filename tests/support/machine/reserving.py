"""The cache machine's rules about reserving."""

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from kvstore import errors
from kvstore.core.values.requests import Match, MatchOptions, ReservationRequest, Sequence
from machine.inserting import InsertSteps
from machine.state import COUNTS, OWNER, PAGES, SELDOM, TAILS
from naive.holds import ModelLease, ModelReservation


class ReserveRules(InsertSteps):
    """Slots are reserved, filled as an engine does, and aborted."""

    def reserve_and_check(self, lease: ModelLease, requests: list[ReservationRequest]) -> bool:
        """Reserves, compare with what the model says can be had, and take it over."""
        have = {r.reservation_id: lease.reservations.get(r.reservation_id) for r in requests}
        missing = [
            max(r.page_count - (len(known.slots) if known else 0), 0)
            for r in requests
            for known in [have[r.reservation_id]]
        ]
        possible, evictions = self.forecast(lease, sum(missing))
        if not possible:
            self.refused(
                errors.PoolExhausted, self.cache.reserve, lease, self.namespace_id, requests
            )
            return False
        grants = self.cache.reserve(self.caller(lease), self.namespace_id, requests, self.now)
        self.model.judge_eviction(self.cached_now, evictions)
        for grant in grants:
            self.take_grant(lease, grant)
        return True

    @precondition(lambda self: self.model.leases)
    @rule(
        data=st.data(),
        wanted=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 4)), min_size=1, max_size=3),
    )
    def reserve(self, data: st.DataObject, wanted: list[tuple[int, int]]) -> None:
        """Reserves for one or more sequences at once: all or nothing."""
        COUNTS["reserve"] += 1
        lease = self.member(data)
        if lease is not None:
            requests = [ReservationRequest(self.fresh(), start, n) for start, n in wanted]
            self.reserve_and_check(lease, requests)

    @precondition(lambda self: any(each.reservations for each in self.model.leases.values()))
    @rule(data=st.data(), more=st.integers(0, 3))
    def reserve_more(self, data: st.DataObject, more: int) -> None:
        """A reservation grows to a total, asked once or again."""
        COUNTS["reserve_more"] += 1
        lease, reservation_id, known = self.reservation(data)
        if lease.expired or not lease.processes:
            return
        request = ReservationRequest(reservation_id, known.start, len(known.slots) + more)
        if self.reserve_and_check(lease, [request]):
            assert self.reserve_and_check(lease, [request])
        moved = ReservationRequest(reservation_id, known.start + 1, 1)
        self.refused(errors.IdReused, self.cache.reserve, lease, self.namespace_id, [moved])

    @precondition(lambda self: self.model.leases)
    @rule(data=st.data(), pages=PAGES, tail=TAILS, ahead=st.integers(0, 2), overtaken=SELDOM)
    def acquire(
        self,
        data: st.DataObject,
        pages: list[int],
        tail: tuple[int, int],
        ahead: int,
        *,
        overtaken: bool,
    ) -> None:
        """Match and reserve in one call, which can be repeated, and be undone beforehand."""
        COUNTS["acquire"] += 1
        lease = self.member(data)
        if lease is None:
            return
        tokens = self.sequence(data, pages, tail)
        if not overtaken:
            self.acquire_one(lease, tokens, ahead, self.options(data))
            return
        reservation_id = self.fresh()
        self.cache.abort(self.caller(lease), [reservation_id], self.now)
        try:
            self.cache.acquire(
                self.caller(lease),
                self.namespace_id,
                Sequence(tokens),
                MatchOptions(self.fresh()),
                reservation_id=reservation_id,
                total_page_count=ahead,
                now=self.now,
            )
        except errors.Tombstoned:
            return
        raise AssertionError("an acquire under a tombstone went through")

    def acquire_one(
        self, lease: ModelLease, tokens: bytes, ahead: int, options: MatchOptions | None = None
    ) -> None:
        """Acquires, again, and insert what was reserved, as an engine does."""
        options = options or MatchOptions(self.fresh())
        reservation_id = self.acquire_and_check(lease, tokens, ahead, options)
        if reservation_id is not None:
            base = ("pin", options.pin_id) if options.pin_id in lease.pins else None
            self.insert_into(lease, reservation_id, tokens, base, self.argmax(tokens))

    def acquire_and_check(
        self,
        lease: ModelLease,
        tokens: bytes,
        ahead: int,
        options: MatchOptions,
        idle: float | None = None,
    ) -> int | None:
        """Acquires, compare with the model, and acquire again; returns the reservation.

        With ``idle`` nothing, where somebody who got on within that time computes more.
        """
        page_count = len(self.model.pages_of(tokens))
        sequence = Sequence(tokens + (9).to_bytes(4, "little"))
        reservation_id = self.fresh()
        args = {
            "options": options,
            "reservation_id": reservation_id,
            "total_page_count": page_count + ahead,
            "now": self.now,
            "yield_idle": idle,
        }
        caller = self.caller(lease)
        path = self.model.longest(sequence.tokens, page_count)
        expected = self.model.expect(lease, sequence, b"", options, path)
        depth = len(expected.path)
        match, grant = self.cache.acquire(caller, self.namespace_id, sequence, **args)
        if idle is not None:
            self.check_in_flight(sequence, expected.path, match.in_flight, idle)
            if match.in_flight is not None:
                COUNTS["yields"] += 1
                told = Match(depth * self.page_tokens, (), in_flight=match.in_flight)
                assert (match, grant) == (told, None)
                held = self.cache.table.find(caller)
                assert options.pin_id not in held.pins
                assert reservation_id not in held.reservations
                return None
        # Pinned by this very call, its own match can't be evicted for its slots.
        self.check_match(lease, expected, (sequence, options), match, idle)
        missing = max(page_count + ahead - depth, 0)
        possible, evictions = self.forecast(lease, missing)
        assert (grant is not None) == possible
        if grant is None:
            return None
        self.model.judge_eviction(self.cached_now, evictions)
        assert grant.start_page == depth
        self.take_grant(lease, grant)
        known = lease.reservations[reservation_id]
        known.pin_id, known.advanced_at = options.pin_id, self.now
        whole = min(len(sequence.tokens) // self.model.width, depth + len(known.slots))
        known.announced = sequence.tokens[: whole * self.model.width] if whole > depth else b""
        again = self.cache.acquire(caller, self.namespace_id, sequence, **args)
        assert again == (match._replace(in_flight=None), grant)
        return reservation_id

    @precondition(lambda self: self.model.leases and self.partial_pages())
    @rule(data=st.data(), symbol=st.sampled_from([0, 3]), whole=st.booleans())
    def go_on_in_a_partial_page(self, data: st.DataObject, symbol: int, *, whole: bool) -> None:
        """Continues a sequence that ended within a page, in a page of one's own."""
        COUNTS["go_on_in_a_partial_page"] += 1
        lease = self.member(data)
        if lease is None:
            return
        partial = data.draw(st.sampled_from(self.partial_pages()))
        begun = len(partial) % self.model.width
        more = self.page(symbol)[begun:]
        self.acquire_one(lease, partial + (more if whole else more[:4]), 0, self.options(data))

    @precondition(lambda self: any(each.reservations for each in self.model.leases.values()))
    @rule(data=st.data(), seldom=SELDOM)
    def come_back_from_another(self, data: st.DataObject, *, seldom: bool) -> None:
        """What was inserted is removed and inserted anew; then the first one stores an end."""
        COUNTS["come_back_from_another"] += 1
        lease, reservation_id, known = self.reservation(data)
        if lease.expired or not lease.processes or not (known.inserted and seldom):
            return
        self.model.remove(known.tokens)
        self.model.disk.forbid(known.tokens)
        self.cache.evict_prefix(OWNER, self.namespace_id, known.tokens)
        self.acquire_one(lease, known.tokens + self.page(0)[:4], 0)
        position = known.start * self.page_tokens
        self.store_end(lease, reservation_id, known.tokens, position, other=True)

    def partial_pages(self) -> list[bytes]:
        """Returns the partial pages of the index."""
        return sorted(each for each in self.model.cached if len(each) % self.model.width)

    def reservation(self, data: st.DataObject) -> tuple[ModelLease, int, ModelReservation]:
        """Draws a reservation."""
        lease = data.draw(
            st.sampled_from([each for each in self.model.leases.values() if each.reservations])
        )
        reservation_id = data.draw(st.sampled_from(sorted(lease.reservations)))
        return lease, reservation_id, lease.reservations[reservation_id]

    @precondition(lambda self: any(each.reservations for each in self.model.leases.values()))
    @rule(data=st.data(), twice=st.booleans())
    def abort(self, data: st.DataObject, *, twice: bool) -> None:
        """Aborts a reservation, once or twice; an insert that arrives afterwards fails whole."""
        COUNTS["abort"] += 1
        lease, reservation_id, _ = self.reservation(data)
        self.cache.abort(self.caller(lease), [reservation_id] * (2 if twice else 1), self.now)
        del lease.reservations[reservation_id]
        lease.dead_reservations.add(reservation_id)
        if lease.processes and not lease.expired:
            late = Sequence(self.tokens([0]))
            self.refused(errors.Tombstoned, self.cache.insert, lease, reservation_id, late)
            request = [ReservationRequest(reservation_id, 0, 1)]
            self.refused(errors.Tombstoned, self.cache.reserve, lease, self.namespace_id, request)
