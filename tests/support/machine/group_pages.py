"""The cache machine's rules about KV cache groups, and about slots that move with an insert."""

from zlib import crc32

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from kvstore import errors
from kvstore.core.values.requests import (
    GroupInsert,
    GroupWindow,
    MatchOptions,
    ReservationRequest,
    Sequence,
    SlotMoves,
)
from machine.inserts import Base, covering, take_inserted
from machine.moves import finish, let_go, plan_promotion, sink
from machine.reservations import reserve_and_check
from machine.state import COUNTS, OWNER, PAGES, SELDOM, MachineState, slots_of
from naive.copies import Path, Slot
from naive.holds import ModelHold, ModelLease, ModelPin, ModelReservation
from naive.model import is_marker, marker

GROUPS = (1, 2)
WINDOWS = st.dictionaries(st.sampled_from(GROUPS), st.sampled_from([1, 1, 2, 3, 0]), min_size=1)
SOME = st.lists(st.integers(0, 3), min_size=1, max_size=3)
STARTS = st.sampled_from([0, 0, 0, 1, 2, 3])
# Groups of the pages of a path, by position.
MARKS = st.lists(st.sampled_from([{1, 2}, {1, 2}, {1}, {2}, set[int]()]), min_size=3, max_size=5)


@precondition(lambda machine: machine.model.leases)
@rule(data=st.data(), pages=PAGES, marks=MARKS, wanted=st.integers(2, 6), again=st.booleans())
def insert_from_spare(
    machine: MachineState,
    data: st.DataObject,
    pages: list[int],
    marks: list[set[int]],
    wanted: int,
    *,
    again: bool,
) -> None:
    """Publishes pages of a path and of groups in slots that were reserved for nothing yet."""
    COUNTS["insert_from_spare"] += 1
    lease = machine.member(data)
    if lease is None:
        return
    spare_id = spare_of(machine, data, lease, wanted)
    if spare_id is None:
        return
    others = [each for each, r in lease.reservations.items() if each != spare_id and not r.moved]
    target_id = data.draw(st.sampled_from([machine.fresh(), *sorted(others)]))
    bases: list[Base] = [None, *(("pin", each) for each in sorted(lease.pins))]
    bases += [("reservation", each) for each in sorted(others)]
    base = data.draw(st.sampled_from(bases))
    known = lease.reservations.get(target_id)
    if known is None:
        known = ModelReservation(0, [], [])
        known.start = len(covering(machine, lease, known, base))
    insert_moving(machine, lease, (spare_id, target_id), known, base, pages, marks)
    if again:
        spare = lease.reservations[spare_id]
        request = ReservationRequest(spare_id, spare.start, len(spare.slots))
        reserve_and_check(machine, lease, [request])


def spare_of(
    machine: MachineState, data: st.DataObject, lease: ModelLease, wanted: int
) -> int | None:
    """Returns a reservation with slots that may move: a new one, or one that is there."""
    there = [each for each, r in lease.reservations.items() if free_offsets(r)]
    chosen = data.draw(st.sampled_from([0, *sorted(there)]))
    if chosen:
        return chosen
    request = ReservationRequest(machine.fresh(), 0, wanted)
    return request.reservation_id if reserve_and_check(machine, lease, [request]) else None


def free_offsets(known: ModelReservation) -> list[int]:
    """Returns the offsets whose slots went through no insert, the last one first."""
    return [
        each
        for each in range(len(known.slots) - 1, known.inserted - 1, -1)
        if each not in known.moved
    ]


def insert_moving(
    machine: MachineState,
    lease: ModelLease,
    ids: tuple[int, int],
    known: ModelReservation,
    base: Base,
    symbols: list[int],
    marks: list[set[int]],
) -> None:
    """Inserts pages and pages of groups, as far as there are slots, and compares."""
    (spare_id, target_id), width = ids, machine.model.width
    spare, model = lease.reservations[spare_id], machine.model
    offsets = free_offsets(spare)
    path, first = covering(machine, lease, known, base), known.start + known.inserted
    if first > len(path) or len(known.tokens) % width:
        return
    have = len(known.slots) - known.inserted
    symbols = symbols[: have + len(offsets)]
    above = path[first - 1][0] if first else b""
    tokens = above + machine.tokens(symbols)
    moving = [offsets.pop() for _ in range(max(len(symbols) - have, 0))]
    whole = [*(prefix for prefix, _ in path[:first]), *model.prefixes(tokens)[first:]]
    if not symbols:
        whole = [prefix for prefix, _ in path]
    groups = chosen_groups(known, marks[: len(whole)], offsets)
    inserts = [
        GroupInsert(group, list(at), list(at.values()), [stamp(group, p) for p in at])
        for group, at in groups.items()
    ]
    of = {f"base_{base[0]}_id": base[1]} if base and not known.inserted else {}
    sequence = Sequence(tokens[first * width :], first * machine.page_tokens, **of)
    moves = SlotMoves(spare_id, moving, inserts)
    args = (target_id, sequence)
    deepest = max((p + 1 for at in groups.values() for p in at), default=0)
    held = path[:first] if symbols else path[:deepest]
    if (symbols or deepest) and model.attached(held) != held:
        refuse(machine, lease, errors.ParentDetached, args, moves)
        return
    if known.is_elsewhere(base):
        refuse(machine, lease, errors.IdReused, args, moves)
        return
    own = known.slots[known.inserted :] + [spare.slots[each] for each in moving]
    fresh = whole[first:] if symbols else []
    checksums = []
    for prefix, slot in zip(fresh, own, strict=False):
        write(machine, prefix, slot, crc32(prefix, target_id) + 1)
        checksums.append(machine.digests[slot])
    for group, at in groups.items():
        for position, offset in at.items():
            prefix = whole[position] + marker(group, width)
            write(machine, prefix, spare.slots[offset], stamp(group, position))
    call = (machine.caller(lease), *args, machine.now)
    inserted = machine.cache.insert(*call, checksums=checksums, moves=moves)
    lease.reservations[target_id] = known
    known.base = known.base if known.group_pages else base
    take_moved(spare, known, moving)
    if symbols:
        begins, below = known.inserted == 0 < known.start, base == ("pin", known.pin_id)
        take_inserted(machine, known, [*path[:first]], fresh, inserted)
        known.tokens = tokens
        known.advance(
            goes_on=known.announced.startswith(tokens) and (below or not begins), now=machine.now
        )
        model.expel()
    published = {
        group: tuple(
            position
            for position, offset in sorted(at.items(), reverse=True)
            if take_group_page(machine, spare, known, (group, position), offset, whole[position])
        )
        for group, at in groups.items()
    }
    told = {group: tuple(sorted(positions, reverse=True)) for group, positions in inserted.groups}
    assert told == published, "other pages of groups were published"
    COUNTS["group pages"] += sum(map(len, published.values()))
    assert machine.cache.insert(*call, moves=moves) == inserted


def chosen_groups(
    known: ModelReservation, marks: list[set[int]], offsets: list[int]
) -> dict[int, dict[int, int]]:
    """Returns an offset for each page of a group that is to be published, by group and position."""
    groups: dict[int, dict[int, int]] = {}
    for position, here in enumerate(marks):
        for group in sorted(here):
            if offsets and (group, position) not in known.group_pages:
                groups.setdefault(group, {})[position] = offsets.pop()
    return groups


def stamp(group: int, position: int) -> int:
    """Returns the checksum of a page of a group in this machine."""
    return crc32(b"group", group * 100 + position) + 1


def write(machine: MachineState, prefix: bytes, slot: Slot, digest: int) -> None:
    """Writes a page into a slot."""
    machine.model.memory[slot] = prefix
    machine.digests[slot] = digest
    machine.flipped.discard(slot)


def refuse(
    machine: MachineState,
    lease: ModelLease,
    error: type[errors.KVStoreError],
    args: tuple[int, Sequence],
    moves: SlotMoves,
) -> None:
    """Checks that an insert with moves is refused; that it changed nothing, the laws check."""
    try:
        machine.cache.insert(machine.caller(lease), *args, machine.now, moves=moves)
    except error:
        return
    raise AssertionError(f"an insert was not refused with {error.__name__}")


def take_moved(spare: ModelReservation, known: ModelReservation, moving: list[int]) -> None:
    """Moves slots in the model."""
    for offset in moving:
        spare.move_out(offset)
        known.slots.append(spare.slots[offset])
        known.own.append(True)


def take_group_page(
    machine: MachineState,
    spare: ModelReservation,
    known: ModelReservation,
    page: tuple[int, int],
    offset: int,
    above: bytes,
) -> bool:
    """Publishes a page of a group in the model, unless it is there; returns whether it did."""
    model, slot = machine.model, spare.slots[offset]
    spare.move_out(offset)
    prefix = above + marker(page[0], model.width)
    known.group_pages[page] = above in model.cached and prefix not in model.cached
    if known.group_pages[page]:
        model.publish(prefix, slot)
        model.expel()
    else:
        known.duplicates.append(slot)
    return known.group_pages[page]


@precondition(lambda machine: machine.model.leases)
@rule(data=st.data(), pages=SOME, windows=WINDOWS, start=STARTS, marks=MARKS, holds=SELDOM)
def match_groups(
    machine: MachineState,
    data: st.DataObject,
    pages: list[int],
    windows: dict[int, int],
    start: int,
    marks: list[set[int]],
    *,
    holds: bool,
) -> None:
    """Matches with windows of groups: the deepest end that the model finds, again and in peek."""
    COUNTS["match_groups"] += 1
    lease = machine.member(data)
    if lease is None:
        return
    model = machine.model
    publish_groups(machine, lease, pages, marks, gives=not holds)
    marked = sorted(filter(is_marker_page(machine), model.cached))
    own = machine.tokens(pages)
    above = data.draw(st.sampled_from([own, own, *(each[: -model.width] for each in marked)]))
    tokens = above + machine.page(0)[:4]
    path = model.longest(tokens, (len(tokens) - 4) // model.width)
    asked = tuple(GroupWindow(*each) for each in windows.items())
    anywhere = model.fit(path, windows, start, {*model.extents})
    call = (OWNER, machine.namespace_id, tokens, machine.now)
    assert machine.cache.peek(*call, asked, start).page_count == len(anywhere[0])
    usable = lease.usable(model.lasting)
    path, groups = model.fit(model.usable_path(path, usable), windows, start, usable)
    sequence = Sequence(tokens)
    options = MatchOptions(machine.fresh(), machine.fresh(), groups=asked, group_start_page=start)
    ask = (machine.caller(lease), machine.namespace_id, sequence, options, machine.now)
    match = machine.cache.match(*ask)
    assert slots_of(match.runs) == [slot for _, slot in path], "another path"
    assert (match.source, match.next_token) == (None, None)
    if not path:
        assert match.groups == ()
        return
    answered = {each.group: slots_of(each.runs) for each in match.groups}
    assert answered == {g: [slot for _, slot in found] for g, found in groups.items()}
    for each in match.groups:
        assert each.start_page == len(path) - len(answered[each.group])
    told = match._replace(in_flight=None)
    pin = ModelPin(path, sequence, options, told)
    pin.groups = [ModelHold(hold) for hold in held_paths(path, groups)]
    lease.pins[options.pin_id] = pin
    COUNTS["pinned group pages"] += len(pin.groups)
    assert machine.cache.match(*ask) == told


def publish_groups(
    machine: MachineState,
    lease: ModelLease,
    pages: list[int],
    marks: list[set[int]],
    *,
    gives: bool,
) -> None:
    """Publishes a sequence with pages of groups; perhaps gives back what it reserved for them."""
    count = len(pages) + sum(map(len, marks[: len(pages)]))
    request = ReservationRequest(machine.fresh(), 0, count)
    if not count or not reserve_and_check(machine, lease, [request]):
        return
    ids = (request.reservation_id, machine.fresh())
    insert_moving(machine, lease, ids, ModelReservation(0, [], []), None, pages, marks)
    if gives:
        ended = [each for each in ids if each in lease.reservations]
        machine.cache.abort(machine.caller(lease), ended, machine.now)
        for each in ended:
            del lease.reservations[each]
            lease.dead_reservations.add(each)


@precondition(lambda machine: machine.has_tiers and machine.model.leases)
@rule(data=st.data(), pages=SOME, marks=MARKS, windows=WINDOWS, start=STARTS, late=SELDOM)
def promote_windows(
    machine: MachineState,
    data: st.DataObject,
    pages: list[int],
    marks: list[set[int]],
    windows: dict[int, int],
    start: int,
    *,
    late: bool,
) -> None:
    """Copies the pages of tier 2 that a match with windows would find, at once or later."""
    COUNTS["promote_windows"] += 1
    lease = machine.member(data)
    if lease is None:
        return
    publish_groups(machine, lease, pages, marks, gives=True)
    let_go(machine)
    sink(machine)
    marked = sorted(filter(is_marker_page(machine), machine.model.cached))
    if not marked:
        return
    above = data.draw(st.sampled_from(marked))[: -machine.model.width]
    sequence = Sequence(above + machine.page(0)[:4])
    asked = tuple(GroupWindow(*each) for each in windows.items())
    options = MatchOptions(machine.fresh(), groups=asked, group_start_page=start)
    moves = plan_promotion(machine, lease, sequence, options)
    COUNTS["promoted group pages"] += sum(
        is_marker(each.tokens()[-machine.model.width :]) for each in moves
    )
    if not late:
        finish(machine, moves)


def held_paths(path: Path, groups: dict[int, Path]) -> list[Path]:
    """Returns the path to each page of a group."""
    return [
        [*path[: len(path) - len(found) + k + 1], page]
        for found in groups.values()
        for k, page in enumerate(found)
    ]


@precondition(lambda machine: any(map(is_marker_page(machine), machine.model.cached)))
@rule(data=st.data())
def evict_a_group_page(machine: MachineState, data: st.DataObject) -> None:
    """An operator removes one page of a group, and what is held of it stays."""
    COUNTS["evict_a_group_page"] += 1
    found = sorted(filter(is_marker_page(machine), machine.model.cached))
    prefix = data.draw(st.sampled_from(found))
    machine.model.remove(prefix)
    machine.model.disk.forbid(prefix)
    removed = machine.cache.evict_prefix(OWNER, machine.namespace_id, prefix)
    assert removed.evicted_page_count + removed.detached_page_count == 1


@precondition(lambda machine: any(map(is_marker_page(machine), machine.model.cached)))
@rule(data=st.data(), group=st.sampled_from(GROUPS))
def name_a_group_page_as_tokens(machine: MachineState, data: st.DataObject, group: int) -> None:
    """A sequence with a marker matches no further, and is not inserted."""
    COUNTS["name_a_group_page_as_tokens"] += 1
    model, page = machine.model, marker(group, machine.model.width)
    marked = sorted(filter(is_marker_page(machine), model.cached))
    tokens = data.draw(st.sampled_from(marked)) + machine.page(0)
    path = model.longest(tokens, len(tokens) // model.width)
    peeked = machine.cache.peek(OWNER, machine.namespace_id, tokens, machine.now)
    assert peeked.page_count == len(path)
    if not any(each.reservations for each in model.leases.values()):
        return
    lease, reservation_id, known = machine.reservation(data)
    is_fresh = bool(known.slots) and not (known.inserted or known.moved or known.start)
    is_fresh = is_fresh and not known.group_pages
    if is_fresh and lease.processes and not lease.expired:
        bad = Sequence(page)
        machine.refused(errors.InvalidField, machine.cache.insert, lease, reservation_id, bad)


def is_marker_page(machine: MachineState):  # noqa: ANN201  # a predicate
    """Returns what tells whether a prefix ends with a page of a group."""
    width = machine.model.width
    return lambda prefix: len(prefix) % width == 0 and is_marker(prefix[-width:])
