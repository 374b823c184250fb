"""The cache machine's rules about matching."""

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from kvstore import errors
from kvstore.core.values.requests import Match, MatchOptions, Sequence
from machine.state import COUNTS, OWNER, PAGES, TAILS, MachineState
from naive.copies import Path
from naive.holds import ModelLease


def match_and_check(
    machine: MachineState,
    lease: ModelLease,
    sequence: Sequence,
    options: MatchOptions,
    path: Path,
    above: bytes = b"",
) -> Match:
    """Match, compare with the model, and match again: the same answer, which is returned."""
    expected = machine.model.expect(lease, sequence, above, options, path)
    caller = machine.caller(lease)
    match = machine.cache.match(caller, machine.namespace_id, sequence, options, machine.now)
    machine.check_match(lease, expected, (sequence, options), match)
    COUNTS["source pages"] += match.source is not None
    COUNTS["next tokens"] += match.next_token is not None
    if options.pin_id in lease.pins:
        again = machine.cache.match(caller, machine.namespace_id, sequence, options, machine.now)
        assert again == match._replace(in_flight=None)
    return match


@precondition(lambda machine: machine.model.leases)
@rule(data=st.data(), pages=PAGES, tail=TAILS)
def match(
    machine: MachineState, data: st.DataObject, pages: list[int], tail: tuple[int, int]
) -> None:
    """Matches a sequence; peek says the same beforehand."""
    COUNTS["match"] += 1
    lease = machine.member(data)
    if lease is None:
        return
    tokens = machine.sequence(data, pages, tail)
    if machine.model.next_tokens and data.draw(st.booleans()):
        tokens = data.draw(st.sampled_from(sorted(machine.model.next_tokens)))
    path = machine.model.longest(tokens, len(tokens) // machine.model.width)
    whole = path[: max(len(tokens) // 4 - 1, 0) // machine.page_tokens]
    peeked = machine.cache.peek(OWNER, machine.namespace_id, tokens, machine.now)
    assert peeked.page_count == len(whole)
    assert peeked.matched_token_count == len(whole) * machine.page_tokens
    machine.check_in_flight(Sequence(tokens), whole, peeked.in_flight)
    start = len(whole) * machine.model.width
    rest = tokens[start : min(start + machine.model.width, len(tokens) - 4)] if tokens else b""
    assert peeked.source_token_count == machine.model.nearest(tokens[:start], rest)[0]
    match_and_check(machine, lease, Sequence(tokens), machine.options(data), path)


@precondition(lambda machine: any(each.pins for each in machine.model.leases.values()))
@rule(data=st.data(), pages=PAGES, tail=TAILS)
def match_from_a_pin(
    machine: MachineState, data: st.DataObject, pages: list[int], tail: tuple[int, int]
) -> None:
    """Matches the continuation of a pinned path, sending only what comes after it."""
    COUNTS["match_from_a_pin"] += 1
    lease = data.draw(st.sampled_from([e for e in machine.model.leases.values() if e.pins]))
    if lease.expired or not lease.processes:
        return
    pin_id = data.draw(st.sampled_from(sorted(lease.pins)))
    path = lease.pins[pin_id].path
    depth = data.draw(st.integers(0, len(path)))
    tokens = machine.tokens(pages, tail)
    above = path[depth - 1][0] if depth else b""
    found = machine.model.attached(path)
    if len(found) >= depth:
        found = machine.model.longest(above + tokens, depth + len(tokens) // machine.model.width)
    sequence = Sequence(tokens, depth * machine.page_tokens, base_pin_id=pin_id)
    match_and_check(machine, lease, sequence, machine.options(data), found, above)


@precondition(lambda machine: any(each.pins for each in machine.model.leases.values()))
@rule(data=st.data())
def repeat_a_match(machine: MachineState, data: st.DataObject) -> None:
    """A repeated match answers its pin; other arguments under its id are refused."""
    COUNTS["repeat_a_match"] += 1
    lease = data.draw(st.sampled_from([e for e in machine.model.leases.values() if e.pins]))
    if lease.expired or not lease.processes:
        return
    pin_id = data.draw(st.sampled_from(sorted(lease.pins)))
    pin = lease.pins[pin_id]
    asked = (machine.namespace_id, pin.sequence, pin.options)
    if pin.match.source is not None and pin.match.source.pin_id not in lease.sources:
        machine.refused(errors.Tombstoned, machine.cache.match, lease, *asked)
        return
    assert machine.cache.match(machine.caller(lease), *asked, machine.now) == pin.match
    # Meanwhile its engine may have found out that it is faster.
    asked = (*asked[:2], pin.options._replace(prefill_tokens_per_second=7))
    assert machine.cache.match(machine.caller(lease), *asked, machine.now) == pin.match
    other = Sequence(machine.tokens([4] * 6))
    options = MatchOptions(pin_id)
    machine.refused(
        errors.IdReused, machine.cache.match, lease, machine.namespace_id, other, options
    )
    if pin.sequence.tokens:
        # Of as many tokens, and all but the first the same.
        first = bytes(255 - byte for byte in pin.sequence.tokens[:4])
        other = pin.sequence._replace(tokens=first + pin.sequence.tokens[4:])
        asked = (machine.namespace_id, other, pin.options)
        machine.refused(errors.IdReused, machine.cache.match, lease, *asked)
    for source_id in list(lease.sources)[:1]:
        reused = MatchOptions(machine.fresh(), source_id)
        machine.refused(
            errors.IdReused, machine.cache.match, lease, machine.namespace_id, other, reused
        )
        below = Sequence(b"", machine.page_tokens, base_pin_id=source_id)
        new = MatchOptions(machine.fresh())
        machine.refused(
            errors.ParentNotCovered, machine.cache.match, lease, machine.namespace_id, below, new
        )


@precondition(lambda machine: any(each.pins for each in machine.model.leases.values()))
@rule(data=st.data(), twice=st.booleans())
def release(machine: MachineState, data: st.DataObject, *, twice: bool) -> None:
    """Releases a pin, once or twice; a match that arrives afterwards fails whole."""
    COUNTS["release"] += 1
    lease = data.draw(st.sampled_from([e for e in machine.model.leases.values() if e.pins]))
    pin_id = data.draw(st.sampled_from(sorted(lease.pins)))
    pin = lease.pins.pop(pin_id)
    lease.dead_pins.add(pin_id)
    machine.cache.release(machine.caller(lease), [pin_id] * (2 if twice else 1), machine.now)
    if lease.processes and not lease.expired:
        asked = (machine.namespace_id, pin.sequence, pin.options)
        machine.refused(errors.Tombstoned, machine.cache.match, lease, *asked)


@precondition(lambda machine: any(each.sources for each in machine.model.leases.values()))
@rule(data=st.data())
def release_a_source(machine: MachineState, data: st.DataObject) -> None:
    """Releases a source page, as soon as it was copied."""
    COUNTS["release_a_source"] += 1
    lease = data.draw(st.sampled_from([e for e in machine.model.leases.values() if e.sources]))
    source_id = data.draw(st.sampled_from(sorted(lease.sources)))
    del lease.sources[source_id]
    machine.cache.release(machine.caller(lease), [source_id], machine.now)
