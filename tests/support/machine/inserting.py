"""How the cache machine writes and inserts, and its rules about it."""

from zlib import crc32

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from kvstore import errors
from kvstore.core.values.requests import Inserted, Sequence
from machine.state import COUNTS, PAGES, TAILS, MachineState, slots_of
from naive.copies import Path
from naive.holds import ModelLease, ModelReservation

# What covers the path above an insert: "pin" or "reservation", and its id.
Base = tuple[str, int] | None


class InsertSteps(MachineState):
    """Pages are written into reserved slots and inserted."""

    def argmax(self, tokens: bytes) -> int:
        """Returns what follows ``tokens`` for this machine's model."""
        return sum(tokens) * 31 + len(tokens)

    def covering(self, lease: ModelLease, known: ModelReservation, base: Base) -> Path:
        """Returns the whole pages that an insert may follow."""
        if known.inserted or base is None:
            path, tokens = known.path, known.tokens
        elif base[0] == "pin":
            return lease.pins[base[1]].path
        else:
            path, tokens = lease.reservations[base[1]].path, lease.reservations[base[1]].tokens
        return path[:-1] if len(tokens) % self.model.width else path

    def insert_into(
        self,
        lease: ModelLease,
        reservation_id: int,
        tokens: bytes,
        base: Base = None,
        next_token: int | None = None,
    ) -> None:
        """Writes and insert the pages of ``tokens`` that the reservation has not inserted yet.

        As far as its slots go; at most the last of them is partial.
        """
        known = lease.reservations[reservation_id]
        width, first = self.model.width, known.start + known.inserted
        tokens = tokens[: (known.start + len(known.slots)) * width]
        pages = self.model.pages_of(tokens)
        if len(pages) <= first:
            return
        of = {f"base_{base[0]}_id": base[1]} if base and not known.inserted else {}
        sequence = Sequence(tokens[first * width :], first * self.page_tokens, **of)
        if len(known.tokens) % width:
            self.refused(
                errors.ParentNotCovered, self.cache.insert, lease, reservation_id, sequence
            )
            return
        for k, prefix in enumerate(pages[first:], start=first):
            slot = known.slots[k - known.start]
            self.model.memory[slot] = prefix
            # Of the writer too: no two that wrote the same page agree in all bits.
            self.digests[slot] = crc32(prefix, reservation_id) + 1
            self.flipped.discard(slot)
        covering = self.covering(lease, known, base)
        if len(covering) < first:
            self.refused(
                errors.ParentNotCovered, self.cache.insert, lease, reservation_id, sequence
            )
            return
        covering = covering[:first]
        if self.model.attached(covering) != covering:
            self.refused(errors.ParentDetached, self.cache.insert, lease, reservation_id, sequence)
            return
        args = (self.caller(lease), reservation_id, sequence, self.now)
        before = self.model.superseded
        own = known.slots[known.inserted :]
        checksums = [self.digests[slot] for _, slot in zip(pages[first:], own, strict=False)]
        inserted = self.cache.insert(*args, next_token=next_token, checksums=checksums)
        begins, below = known.inserted == 0 < known.start, base == ("pin", known.pin_id)
        self.take_inserted(known, [*covering], pages[first:], inserted)
        known.tokens = tokens
        as_said = known.announced.startswith(tokens) and len(tokens) % width == 0
        known.advance(goes_on=as_said and (below or not begins), now=self.now)
        COUNTS["superseded pages"] += self.model.superseded - before
        COUNTS["expelled pages"] += self.model.expel()
        if next_token is not None and self.model.attached(known.path) == known.path:
            self.model.store_end(tokens, next_token)
        assert self.cache.insert(*args) == inserted

    def take_inserted(
        self, known: ModelReservation, path: Path, pages: list[bytes], inserted: Inserted
    ) -> None:
        """Publishes in the model what was not there, and compare with the answer."""
        published = 0
        for prefix, answered in zip(pages, slots_of(inserted.runs), strict=True):
            own = known.slots[known.inserted]
            there = {self.model.cached[each]: each for each in self.model.covering(prefix)}
            if there:
                assert answered in there, "another page than the index has was answered"
                path.append((there[answered], answered))
            else:
                assert answered == own, "a page that was not there is not the inserter's"
                self.model.publish(prefix, own)
                known.own[known.inserted] = False
                published += 1
                path.append((prefix, own))
            known.inserted += 1
        assert inserted.published_page_count == published
        COUNTS["partial pages"] += bool(len(pages[-1]) % self.model.width)
        known.path = path

    @precondition(lambda self: any(each.reservations for each in self.model.leases.values()))
    @rule(data=st.data(), pages=PAGES, tail=TAILS, ends=st.booleans())
    def insert(
        self, data: st.DataObject, pages: list[int], tail: tuple[int, int], *, ends: bool
    ) -> None:
        """Writes and publish the next pages of a reservation, on its own path or another's."""
        COUNTS["insert"] += 1
        lease, reservation_id, known = self.reservation(data)
        if lease.expired or not lease.processes:
            return
        bases: list[Base] = [None, *(("pin", each) for each in sorted(lease.pins))]
        bases += [("reservation", each) for each in sorted(lease.reservations)]
        base = data.draw(st.sampled_from(bases))
        path = self.covering(lease, known, base)
        first = known.start + known.inserted
        above = path[first - 1][0] if 0 < first <= len(path) else self.tokens([0] * first)
        tokens = above + self.tokens(pages, tail)
        self.insert_into(lease, reservation_id, tokens, base, self.argmax(tokens) if ends else None)

    @precondition(lambda self: any(each.reservations for each in self.model.leases.values()))
    @rule(data=st.data(), other=st.booleans())
    def store_next_token(self, data: st.DataObject, *, other: bool) -> None:
        """Inserts again, up to an end within what was inserted, with the next token there."""
        COUNTS["store_next_token"] += 1
        lease, reservation_id, known = self.reservation(data)
        if lease.expired or not lease.processes or not known.inserted:
            return
        begin = known.start * self.page_tokens
        end = data.draw(st.integers(begin, len(known.tokens) // 4))
        position = data.draw(st.integers(known.start, end // self.page_tokens)) * self.page_tokens
        self.store_end(lease, reservation_id, known.tokens[: 4 * end], position, other=other)

    def store_end(
        self, lease: ModelLease, reservation_id: int, tokens: bytes, position: int, *, other: bool
    ) -> None:
        """Inserts ``tokens``, inserted before, from ``position`` on again, for their next token."""
        known = lease.reservations[reservation_id]
        sequence = Sequence(tokens[4 * position :], position)
        token = self.argmax(tokens) + other
        self.cache.insert(self.caller(lease), reservation_id, sequence, self.now, next_token=token)
        path = known.path[: len(self.model.pages_of(tokens))]
        if self.model.attached(path) == path:
            self.model.store_end(tokens, token)

    @precondition(lambda self: any(each.reservations for each in self.model.leases.values()))
    @rule(data=st.data())
    def insert_badly(self, data: st.DataObject) -> None:
        """An insert that is too long, ahead, or repeated otherwise is refused."""
        COUNTS["insert_badly"] += 1
        lease, reservation_id, known = self.reservation(data)
        if lease.expired or not lease.processes:
            return
        end = known.start + len(known.slots)
        insert = self.cache.insert
        start = known.start * self.page_tokens
        too_long = Sequence(self.tokens([0] * (len(known.slots) + 1)), start)
        self.refused(errors.InsertExceedsReservation, insert, lease, reservation_id, too_long)
        if known.start + known.inserted + 1 < end:
            ahead = (known.start + known.inserted + 1) * self.page_tokens
            sequence = Sequence(self.tokens([0]), ahead)
            self.refused(errors.ParentNotCovered, insert, lease, reservation_id, sequence)
        if known.inserted:
            mine = known.tokens[known.start * self.model.width :]
            changed = Sequence(mine[:3] + b"\xff" + mine[4:], start)
            self.refused(errors.IdReused, insert, lease, reservation_id, changed)
            if len(mine) % self.model.width:
                longer = Sequence(mine + (7).to_bytes(4, "little"), start)
                self.refused(errors.IdReused, insert, lease, reservation_id, longer)
