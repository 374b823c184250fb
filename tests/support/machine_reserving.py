"""The cache machine's rules about reserving and inserting."""

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from machine_state import COUNTS, PAGES, MachineState, slots_of
from naive_model import ModelHold, ModelLease, ModelReservation, Path

from kvstore import errors
from kvstore.core.requests import MatchWishes, ReservationRequest, Sequence


class ReserveRules(MachineState):
    """Slots are reserved, written, inserted and aborted."""

    def reserve_and_check(self, lease: ModelLease, requests: list[ReservationRequest]) -> bool:
        """Reserve, compare with what the model says can be had, and take it over."""
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
        self.model.judge_eviction(self.cached_now(), evictions)
        for grant in grants:
            self.take_grant(lease, grant)
        return True

    @precondition(lambda self: self.model.leases)
    @rule(
        data=st.data(),
        wanted=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 4)), min_size=1, max_size=3),
    )
    def reserve(self, data: st.DataObject, wanted: list[tuple[int, int]]) -> None:
        """Reserve for one or more sequences at once: all or nothing."""
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
    @rule(data=st.data(), pages=PAGES, ahead=st.integers(0, 2), overtaken=st.booleans())
    def acquire(
        self, data: st.DataObject, pages: list[int], ahead: int, *, overtaken: bool
    ) -> None:
        """Match and reserve in one call, which can be repeated, and be undone beforehand."""
        COUNTS["acquire"] += 1
        lease = self.member(data)
        if lease is None:
            return
        tokens = self.sequence(data, pages)
        if not overtaken:
            self.acquire_one(lease, tokens, ahead)
            return
        reservation_id = self.fresh()
        self.cache.abort(self.caller(lease), [reservation_id], self.now)
        try:
            self.cache.acquire(
                self.caller(lease),
                self.namespace_id,
                Sequence(tokens),
                MatchWishes(self.fresh()),
                reservation_id=reservation_id,
                total_page_count=ahead,
                now=self.now,
            )
        except errors.Tombstoned:
            return
        raise AssertionError("an acquire under a tombstone went through")

    def acquire_one(self, lease: ModelLease, tokens: bytes, ahead: int) -> None:
        """Acquire, again, and insert what was reserved, as an engine does."""
        page_count = len(tokens) // self.model.width
        sequence = Sequence(tokens + (9).to_bytes(4, "little"))
        pin_id, reservation_id = self.fresh(), self.fresh()
        args = {
            "wishes": MatchWishes(pin_id),
            "reservation_id": reservation_id,
            "total_page_count": page_count + ahead,
            "now": self.now,
        }
        caller = self.caller(lease)
        expected = self.expected_match(lease, sequence.tokens)
        # Pinned by this very call, its own match can't be evicted for its slots.
        if expected:
            lease.pins[pin_id] = (sequence, ModelHold(expected))
        missing = max(page_count + ahead - len(expected), 0)
        possible, evictions = self.forecast(lease, missing)
        match, grant = self.cache.acquire(caller, self.namespace_id, sequence, **args)
        assert slots_of(match.runs) == [slot for _, slot in expected]
        assert (grant is not None) == possible
        if grant is not None:
            self.model.judge_eviction(self.cached_now(), evictions)
            assert grant.start_page == len(expected)
            self.take_grant(lease, grant)
            again = self.cache.acquire(caller, self.namespace_id, sequence, **args)
            assert again == (match, grant)
            self.insert_into(lease, reservation_id, sequence.tokens, page_count, pin_id)

    def reservation(self, data: st.DataObject) -> tuple[ModelLease, int, ModelReservation]:
        """Draw a reservation."""
        lease = data.draw(
            st.sampled_from([each for each in self.model.leases.values() if each.reservations])
        )
        reservation_id = data.draw(st.sampled_from(sorted(lease.reservations)))
        return lease, reservation_id, lease.reservations[reservation_id]

    def insert_into(
        self, lease: ModelLease, reservation_id: int, tokens: bytes, end: int, pin_id: int | None
    ) -> None:
        """Write and insert the pages of ``tokens`` from where the reservation stands to ``end``."""
        known = lease.reservations[reservation_id]
        first = known.start + known.inserted
        end = min(end, known.start + len(known.slots))
        if end <= first:
            return
        width = self.model.width
        covering: Path = known.path
        if not known.inserted:
            covering = lease.pins[pin_id][1].path if pin_id in lease.pins else []
        sequence = Sequence(
            tokens[first * width : end * width],
            first * self.page_tokens,
            base_pin_id=None if known.inserted or pin_id not in lease.pins else pin_id,
        )
        for k in range(first, end):
            slot = known.slots[k - known.start]
            self.model.memory[slot] = tokens[: (k + 1) * width]
        if len(covering) < first:
            self.refused(
                errors.ParentNotCovered, self.cache.insert, lease, reservation_id, sequence
            )
            return
        covering = covering[:first]
        if self.model.attached(covering) != covering:
            self.refused(errors.ParentDetached, self.cache.insert, lease, reservation_id, sequence)
            return
        path, published = list(covering), 0
        for k, prefix in enumerate(self.model.prefixes(tokens)[first:end], start=first):
            slot = known.slots[k - known.start]
            if prefix not in self.model.cached:
                self.model.cached[prefix] = slot
                known.own[k - known.start] = False
                published += 1
            path.append((prefix, self.model.cached[prefix]))
        known.inserted, known.path = end - known.start, path
        inserted = self.cache.insert(self.caller(lease), reservation_id, sequence, self.now)
        assert slots_of(inserted.runs) == [slot for _, slot in path[first:]]
        assert inserted.published_page_count == published
        again = self.cache.insert(self.caller(lease), reservation_id, sequence, self.now)
        assert again == inserted

    @precondition(lambda self: any(each.reservations for each in self.model.leases.values()))
    @rule(data=st.data(), pages=PAGES.filter(bool))
    def insert(self, data: st.DataObject, pages: list[int]) -> None:
        """Write and publish the next pages of a reservation, on its own path or a pin's."""
        COUNTS["insert"] += 1
        lease, reservation_id, known = self.reservation(data)
        if lease.expired or not lease.processes:
            return
        pin_id = data.draw(st.sampled_from([None, *sorted(lease.pins)]))
        path = known.path
        if not known.inserted and pin_id is not None:
            path = lease.pins[pin_id][1].path
        first = known.start + known.inserted
        before = path[first - 1][0] if 0 < first <= len(path) else self.tokens([0] * first)
        self.insert_into(
            lease, reservation_id, before + self.tokens(pages), first + len(pages), pin_id
        )

    @precondition(lambda self: any(each.reservations for each in self.model.leases.values()))
    @rule(data=st.data())
    def insert_badly(self, data: st.DataObject) -> None:
        """An insert that is too long, ahead, split in a page or repeated otherwise is refused."""
        COUNTS["insert_badly"] += 1
        lease, reservation_id, known = self.reservation(data)
        if lease.expired or not lease.processes:
            return
        end = known.start + len(known.slots)
        insert = self.cache.insert
        too_long = Sequence(
            self.tokens([0] * (len(known.slots) + 1)), known.start * self.page_tokens
        )
        self.refused(errors.InsertExceedsReservation, insert, lease, reservation_id, too_long)
        if known.start + known.inserted + 1 < end:
            ahead = (known.start + known.inserted + 1) * self.page_tokens
            sequence = Sequence(self.tokens([0]), ahead)
            self.refused(errors.ParentNotCovered, insert, lease, reservation_id, sequence)
        if known.inserted:
            prefix = known.path[known.start][0]
            other = prefix[-self.model.width : -1] + b"\xff"
            sequence = Sequence(other, known.start * self.page_tokens)
            self.refused(errors.IdReused, insert, lease, reservation_id, sequence)

    @precondition(lambda self: any(each.reservations for each in self.model.leases.values()))
    @rule(data=st.data(), twice=st.booleans())
    def abort(self, data: st.DataObject, *, twice: bool) -> None:
        """Abort a reservation, once or twice; an insert that arrives afterwards fails whole."""
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
