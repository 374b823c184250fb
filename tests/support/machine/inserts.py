"""The cache machine's writes and inserts, and its rules about them."""

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


def argmax(tokens: bytes) -> int:
    """Returns what follows ``tokens`` for this machine's model."""
    return sum(tokens) * 31 + len(tokens)


def covering(machine: MachineState, lease: ModelLease, known: ModelReservation, base: Base) -> Path:
    """Returns the whole pages that an insert may follow."""
    if known.inserted or base is None:
        path, tokens = known.path, known.tokens
    elif base[0] == "pin":
        return lease.pins[base[1]].path
    else:
        path, tokens = lease.reservations[base[1]].path, lease.reservations[base[1]].tokens
    return path[:-1] if len(tokens) % machine.model.width else path


def insert_into(
    machine: MachineState,
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
    width, first = machine.model.width, known.start + known.inserted
    tokens = tokens[: (known.start + known.slot_end) * width]
    pages = machine.model.pages_of(tokens)
    if len(pages) <= first:
        return
    of = {f"base_{base[0]}_id": base[1]} if base and not known.inserted else {}
    sequence = Sequence(tokens[first * width :], first * machine.page_tokens, **of)
    if len(known.tokens) % width:
        machine.refused(
            errors.ParentNotCovered, machine.cache.insert, lease, reservation_id, sequence
        )
        return
    for k, prefix in enumerate(pages[first:], start=first):
        slot = known.slots[k - known.start]
        machine.model.memory[slot] = prefix
        # Of the writer too: no two that wrote the same page agree in all bits.
        machine.digests[slot] = crc32(prefix, reservation_id) + 1
        machine.flipped.discard(slot)
    if known.is_elsewhere(base):
        machine.refused(errors.IdReused, machine.cache.insert, lease, reservation_id, sequence)
        return
    above = covering(machine, lease, known, base)
    if len(above) < first:
        machine.refused(
            errors.ParentNotCovered, machine.cache.insert, lease, reservation_id, sequence
        )
        return
    above = above[:first]
    if machine.model.attached(above) != above:
        machine.refused(
            errors.ParentDetached, machine.cache.insert, lease, reservation_id, sequence
        )
        return
    args = (machine.caller(lease), reservation_id, sequence, machine.now)
    before = machine.model.superseded
    own = known.slots[known.inserted :]
    checksums = [machine.digests[slot] for _, slot in zip(pages[first:], own, strict=False)]
    inserted = machine.cache.insert(*args, next_token=next_token, checksums=checksums)
    begins, below = known.inserted == 0 < known.start, base == ("pin", known.pin_id)
    take_inserted(machine, known, [*above], pages[first:], inserted)
    known.tokens = tokens
    as_said = known.announced.startswith(tokens) and len(tokens) % width == 0
    known.advance(goes_on=as_said and (below or not begins), now=machine.now)
    COUNTS["superseded pages"] += machine.model.superseded - before
    COUNTS["expelled pages"] += machine.model.expel()
    if next_token is not None and machine.model.attached(known.path) == known.path:
        machine.model.store_end(tokens, next_token)
    assert machine.cache.insert(*args) == inserted


def take_inserted(
    machine: MachineState,
    known: ModelReservation,
    path: Path,
    pages: list[bytes],
    inserted: Inserted,
) -> None:
    """Publishes in the model what was not there, and compare with the answer."""
    published = 0
    for prefix, answered in zip(pages, slots_of(inserted.runs), strict=True):
        own = known.slots[known.inserted]
        there = {machine.model.cached[each]: each for each in machine.model.covering(prefix)}
        if there:
            assert answered in there, "another page than the index has was answered"
            path.append((there[answered], answered))
        else:
            assert answered == own, "a page that was not there is not the inserter's"
            machine.model.publish(prefix, own)
            known.own[known.inserted] = False
            published += 1
            path.append((prefix, own))
        known.inserted += 1
    assert inserted.published_page_count == published
    COUNTS["partial pages"] += bool(len(pages[-1]) % machine.model.width)
    known.path = path


@precondition(lambda machine: any(each.reservations for each in machine.model.leases.values()))
@rule(data=st.data(), pages=PAGES, tail=TAILS, ends=st.booleans())
def insert(
    machine: MachineState,
    data: st.DataObject,
    pages: list[int],
    tail: tuple[int, int],
    *,
    ends: bool,
) -> None:
    """Writes and publish the next pages of a reservation, on its own path or another's."""
    COUNTS["insert"] += 1
    lease, reservation_id, known = machine.reservation(data)
    if lease.expired or not lease.processes:
        return
    bases: list[Base] = [None, *(("pin", each) for each in sorted(lease.pins))]
    bases += [("reservation", each) for each in sorted(lease.reservations)]
    base = data.draw(st.sampled_from(bases))
    path = covering(machine, lease, known, base)
    first = known.start + known.inserted
    above = path[first - 1][0] if 0 < first <= len(path) else machine.tokens([0] * first)
    tokens = above + machine.tokens(pages, tail)
    insert_into(machine, lease, reservation_id, tokens, base, argmax(tokens) if ends else None)


@precondition(lambda machine: any(each.reservations for each in machine.model.leases.values()))
@rule(data=st.data(), other=st.booleans())
def store_next_token(machine: MachineState, data: st.DataObject, *, other: bool) -> None:
    """Inserts again, up to an end within what was inserted, with the next token there."""
    COUNTS["store_next_token"] += 1
    lease, reservation_id, known = machine.reservation(data)
    if lease.expired or not lease.processes or not known.inserted:
        return
    begin = known.start * machine.page_tokens
    end = data.draw(st.integers(begin, len(known.tokens) // 4))
    position = data.draw(st.integers(known.start, end // machine.page_tokens)) * machine.page_tokens
    store_end(machine, lease, reservation_id, known.tokens[: 4 * end], position, other=other)


def store_end(
    machine: MachineState,
    lease: ModelLease,
    reservation_id: int,
    tokens: bytes,
    position: int,
    *,
    other: bool,
) -> None:
    """Inserts ``tokens``, inserted before, from ``position`` on again, for their next token."""
    known = lease.reservations[reservation_id]
    sequence = Sequence(tokens[4 * position :], position)
    token = argmax(tokens) + other
    machine.cache.insert(
        machine.caller(lease), reservation_id, sequence, machine.now, next_token=token
    )
    path = known.path[: len(machine.model.pages_of(tokens))]
    if machine.model.attached(path) == path:
        machine.model.store_end(tokens, token)


@precondition(lambda machine: any(each.reservations for each in machine.model.leases.values()))
@rule(data=st.data())
def insert_badly(machine: MachineState, data: st.DataObject) -> None:
    """An insert that is too long, ahead, or repeated otherwise is refused."""
    COUNTS["insert_badly"] += 1
    lease, reservation_id, known = machine.reservation(data)
    if lease.expired or not lease.processes:
        return
    end = known.start + len(known.slots)
    insert = machine.cache.insert
    start = known.start * machine.page_tokens
    too_long = Sequence(machine.tokens([0] * (len(known.slots) + 1)), start)
    machine.refused(errors.InsertExceedsReservation, insert, lease, reservation_id, too_long)
    if known.start + known.inserted + 1 < end and not known.moved:
        ahead = (known.start + known.inserted + 1) * machine.page_tokens
        sequence = Sequence(machine.tokens([0]), ahead)
        machine.refused(errors.ParentNotCovered, insert, lease, reservation_id, sequence)
    if known.inserted:
        mine = known.tokens[known.start * machine.model.width :]
        changed = Sequence(mine[:3] + b"\xff" + mine[4:], start)
        machine.refused(errors.IdReused, insert, lease, reservation_id, changed)
        if len(mine) % machine.model.width:
            longer = Sequence(mine + (7).to_bytes(4, "little"), start)
            machine.refused(errors.IdReused, insert, lease, reservation_id, longer)
