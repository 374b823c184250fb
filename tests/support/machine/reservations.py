"""The cache machine's rules about reserving."""

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from kvstore import errors
from kvstore.core.values.requests import Match, MatchOptions, ReservationRequest, Sequence
from machine.inserts import argmax, insert_into, store_end
from machine.state import COUNTS, OWNER, PAGES, SELDOM, TAILS, MachineState
from naive.holds import ModelLease


def reserve_and_check(
    machine: MachineState, lease: ModelLease, requests: list[ReservationRequest]
) -> bool:
    """Reserves, compare with what the model says can be had, and take it over."""
    have = {r.reservation_id: lease.reservations.get(r.reservation_id) for r in requests}
    missing = [
        max(r.page_count - (len(known.slots) if known else 0), 0)
        + (len(known.moved) if known else 0)
        for r in requests
        for known in [have[r.reservation_id]]
    ]
    possible, evictions = machine.forecast(lease, sum(missing))
    if not possible:
        machine.refused(
            errors.PoolExhausted, machine.cache.reserve, lease, machine.namespace_id, requests
        )
        return False
    grants = machine.cache.reserve(
        machine.caller(lease), machine.namespace_id, requests, machine.now
    )
    machine.model.judge_eviction(machine.cached_now, evictions)
    for grant in grants:
        machine.take_grant(lease, grant)
    return True


@precondition(lambda machine: machine.model.leases)
@rule(
    data=st.data(),
    wanted=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 4)), min_size=1, max_size=3),
)
def reserve(machine: MachineState, data: st.DataObject, wanted: list[tuple[int, int]]) -> None:
    """Reserves for one or more sequences at once: all or nothing."""
    COUNTS["reserve"] += 1
    lease = machine.member(data)
    if lease is not None:
        requests = [ReservationRequest(machine.fresh(), start, n) for start, n in wanted]
        reserve_and_check(machine, lease, requests)


@precondition(lambda machine: any(each.reservations for each in machine.model.leases.values()))
@rule(data=st.data(), more=st.integers(0, 3))
def reserve_more(machine: MachineState, data: st.DataObject, more: int) -> None:
    """A reservation grows to a total, asked once or again."""
    COUNTS["reserve_more"] += 1
    lease, reservation_id, known = machine.reservation(data)
    if lease.expired or not lease.processes:
        return
    request = ReservationRequest(reservation_id, known.start, len(known.slots) + more)
    if reserve_and_check(machine, lease, [request]):
        assert reserve_and_check(machine, lease, [request])
    moved = ReservationRequest(reservation_id, known.start + 1, 1)
    machine.refused(errors.IdReused, machine.cache.reserve, lease, machine.namespace_id, [moved])


@precondition(lambda machine: machine.model.leases)
@rule(data=st.data(), pages=PAGES, tail=TAILS, ahead=st.integers(0, 2), overtaken=SELDOM)
def acquire(
    machine: MachineState,
    data: st.DataObject,
    pages: list[int],
    tail: tuple[int, int],
    ahead: int,
    *,
    overtaken: bool,
) -> None:
    """Match and reserve in one call, which can be repeated, and be undone beforehand."""
    COUNTS["acquire"] += 1
    lease = machine.member(data)
    if lease is None:
        return
    tokens = machine.sequence(data, pages, tail)
    if not overtaken:
        acquire_one(machine, lease, tokens, ahead, machine.options(data))
        return
    reservation_id = machine.fresh()
    machine.cache.abort(machine.caller(lease), [reservation_id], machine.now)
    try:
        machine.cache.acquire(
            machine.caller(lease),
            machine.namespace_id,
            Sequence(tokens),
            MatchOptions(machine.fresh()),
            reservation_id=reservation_id,
            total_page_count=ahead,
            now=machine.now,
        )
    except errors.Tombstoned:
        return
    raise AssertionError("an acquire under a tombstone went through")


def acquire_one(
    machine: MachineState,
    lease: ModelLease,
    tokens: bytes,
    ahead: int,
    options: MatchOptions | None = None,
) -> None:
    """Acquires, again, and insert what was reserved, as an engine does."""
    options = options or MatchOptions(machine.fresh())
    reservation_id = acquire_and_check(machine, lease, tokens, ahead, options)
    if reservation_id is not None:
        base = ("pin", options.pin_id) if options.pin_id in lease.pins else None
        insert_into(machine, lease, reservation_id, tokens, base, argmax(tokens))


def acquire_and_check(
    machine: MachineState,
    lease: ModelLease,
    tokens: bytes,
    ahead: int,
    options: MatchOptions,
    idle: float | None = None,
) -> int | None:
    """Acquires, compare with the model, and acquire again; returns the reservation.

    With ``idle`` nothing, where somebody who got on within that time computes more.
    """
    page_count = len(machine.model.pages_of(tokens))
    sequence = Sequence(tokens + (9).to_bytes(4, "little"))
    reservation_id = machine.fresh()
    args = {
        "options": options,
        "reservation_id": reservation_id,
        "total_page_count": page_count + ahead,
        "now": machine.now,
        "yield_idle": idle,
    }
    caller = machine.caller(lease)
    path = machine.model.longest(sequence.tokens, page_count)
    expected = machine.model.expect(lease, sequence, b"", options, path)
    depth = len(expected.path)
    match, grant = machine.cache.acquire(caller, machine.namespace_id, sequence, **args)
    if idle is not None:
        machine.check_in_flight(sequence, expected.path, match.in_flight, idle)
        if match.in_flight is not None:
            COUNTS["yields"] += 1
            told = Match(depth * machine.page_tokens, (), in_flight=match.in_flight)
            assert (match, grant) == (told, None)
            held = machine.cache.table.find(caller)
            assert options.pin_id not in held.pins
            assert reservation_id not in held.reservations
            return None
    # Pinned by this very call, its own match can't be evicted for its slots.
    machine.check_match(lease, expected, (sequence, options), match, idle)
    missing = max(page_count + ahead - depth, 0)
    possible, evictions = machine.forecast(lease, missing)
    assert (grant is not None) == possible
    if grant is None:
        return None
    machine.model.judge_eviction(machine.cached_now, evictions)
    assert grant.start_page == depth
    machine.take_grant(lease, grant)
    known = lease.reservations[reservation_id]
    known.pin_id, known.advanced_at = options.pin_id, machine.now
    whole = min(len(sequence.tokens) // machine.model.width, depth + len(known.slots))
    known.announced = sequence.tokens[: whole * machine.model.width] if whole > depth else b""
    again = machine.cache.acquire(caller, machine.namespace_id, sequence, **args)
    assert again == (match._replace(in_flight=None), grant)
    return reservation_id


@precondition(lambda machine: bool(machine.model.leases and partial_pages(machine)))
@rule(data=st.data(), symbol=st.sampled_from([0, 3]), whole=st.booleans())
def go_on_in_a_partial_page(
    machine: MachineState, data: st.DataObject, symbol: int, *, whole: bool
) -> None:
    """Continues a sequence that ended within a page, in a page of one's own."""
    COUNTS["go_on_in_a_partial_page"] += 1
    lease = machine.member(data)
    if lease is None:
        return
    partial = data.draw(st.sampled_from(partial_pages(machine)))
    begun = len(partial) % machine.model.width
    more = machine.page(symbol)[begun:]
    acquire_one(machine, lease, partial + (more if whole else more[:4]), 0, machine.options(data))


@precondition(lambda machine: any(each.reservations for each in machine.model.leases.values()))
@rule(data=st.data(), seldom=SELDOM)
def come_back_from_another(machine: MachineState, data: st.DataObject, *, seldom: bool) -> None:
    """Removes inserted pages and inserts them anew; then the first one stores a next token."""
    COUNTS["come_back_from_another"] += 1
    lease, reservation_id, known = machine.reservation(data)
    if lease.expired or not lease.processes or not (known.inserted and seldom):
        return
    machine.model.remove(known.tokens)
    machine.model.disk.forbid(known.tokens)
    machine.cache.evict_prefix(OWNER, machine.namespace_id, known.tokens)
    acquire_one(machine, lease, known.tokens + machine.page(0)[:4], 0)
    position = known.start * machine.page_tokens
    store_end(machine, lease, reservation_id, known.tokens, position, other=True)


def partial_pages(machine: MachineState) -> list[bytes]:
    """Returns the partial pages of the index."""
    return sorted(each for each in machine.model.cached if len(each) % machine.model.width)


@precondition(lambda machine: any(each.reservations for each in machine.model.leases.values()))
@rule(data=st.data(), twice=st.booleans())
def abort(machine: MachineState, data: st.DataObject, *, twice: bool) -> None:
    """Aborts a reservation, once or twice; an insert that arrives afterwards fails whole."""
    COUNTS["abort"] += 1
    lease, reservation_id, _ = machine.reservation(data)
    machine.cache.abort(machine.caller(lease), [reservation_id] * (2 if twice else 1), machine.now)
    del lease.reservations[reservation_id]
    lease.dead_reservations.add(reservation_id)
    if lease.processes and not lease.expired:
        late = Sequence(machine.tokens([0]))
        machine.refused(errors.Tombstoned, machine.cache.insert, lease, reservation_id, late)
        request = [ReservationRequest(reservation_id, 0, 1)]
        machine.refused(
            errors.Tombstoned, machine.cache.reserve, lease, machine.namespace_id, request
        )
