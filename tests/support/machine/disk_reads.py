"""The cache machine's rules about disk reads."""

from itertools import takewhile
from zlib import crc32

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from kvstore.core.index.node import Position
from kvstore.core.tiers.disk_reads import Located
from kvstore.core.values.requests import MatchOptions, ReservationRequest, Sequence
from machine.disk_writes import digest_of, finish_keeping, plan, tell, whole
from machine.extents import retire
from machine.moves import finish_all, pair, plan_once
from machine.reservations import acquire_one, reserve_and_check
from machine.state import COUNTS, OWNER, PAGES, SELDOM, MachineState
from naive.copies import FIRST, Path
from naive.disk import ModelDiskRead
from naive.holds import ModelLease
from naive.model import is_marker

# What happens while pages are read.
MEANWHILE = st.sampled_from(
    ["nothing", "later", "an operator removes", "its path retires", "others insert"]
)


@precondition(lambda machine: machine.model.leases)
@rule(data=st.data(), pages=PAGES, meanwhile=MEANWHILE)
def load(machine: MachineState, data: st.DataObject, pages: list[int], meanwhile: str) -> None:
    """Reads the pages after the cached ones of a sequence, well or not."""
    pages = pages or [0, 1]
    COUNTS["load"] += 1
    lease = machine.member(data)
    if lease is None:
        return
    width = machine.model.width
    on_disk = {each for each in machine.model.disk.prefixes if not is_marker(each[-width:])}
    known = sorted({b"", *on_disk, *whole(machine)})
    if meanwhile == "its path retires":
        known = whole(machine) or known
    tokens = data.draw(st.sampled_from(known)) + machine.tokens(pages)
    if meanwhile == "its path retires" and machine.cache.state.wanted is not None:
        copy_down(machine, tokens)
    sequence = Sequence(tokens)
    caller = machine.caller(lease)
    located = machine.cache.locate(caller, machine.namespace_id, sequence)
    path = machine.model.longest(tokens, len(tokens) // width)
    matchable = max(len(tokens) // 4 - 1, 0) // machine.page_tokens
    assert located.end == len(path)
    assert located.page_count == max(matchable - len(path), 0)
    if machine.cache.state.disk is not None and any(machine.cache.state.disk.removed):
        args = (caller, machine.namespace_id, sequence, located.page_count, located)
        assert machine.cache.begin_read(*args) is None, "read before the disk was told"
    tell(machine)
    beyond = machine.model.prefixes(tokens)[len(path) : matchable]
    assert list(located.page_digests()) == [digest_of(machine, each) for each in beyond]
    if not data.draw(SELDOM):
        # Whoever was here before kept it.
        machine.model.disk.prefixes.update(machine.model.prefixes(tokens))
    there = list(takewhile(machine.model.disk.prefixes.__contains__, beyond))
    begin_one(machine, data, lease, sequence, located, path, there)
    if not machine.reads or meanwhile == "later":
        return
    let_happen(machine, data, meanwhile, lease, (tokens, len(path)))
    finish_loading(machine)


def let_happen(
    machine: MachineState,
    data: st.DataObject,
    meanwhile: str,
    lease: ModelLease,
    asked: tuple[bytes, int],
) -> None:
    """Changes something about the pages that are read, or about those above them."""
    (tokens, depth), width = asked, machine.model.width
    if meanwhile == "an operator removes":
        machine.model.remove(tokens[:width])
        machine.model.disk.forbid(tokens[:width])
        machine.cache.evict_prefix(OWNER, machine.namespace_id, tokens[:width])
    elif meanwhile == "others insert":
        acquire_one(machine, lease, tokens[: (depth + 1) * width], machine.page_tokens - 1)
    elif meanwhile == "its path retires":
        [*_, known] = machine.model.disk.reads.values()
        copies = [*machine.model.first.items(), *machine.model.lower.items()]
        above = {prefix for prefix, _ in known.path}
        apart = {slot[0] for prefix, slot in copies if prefix in above}
        apart -= {slot[0] for _, slot in known.pages}
        if apart & machine.model.lasting.keys():
            COUNTS["paths of loads retired"] += 1
            retire(machine, data, min(apart & machine.model.lasting.keys()))


def copy_down(machine: MachineState, tokens: bytes) -> None:
    """Copies the cached part of a sequence to tier 2, where it is in another extent."""
    index = machine.cache.namespaces[machine.namespace_id].index
    at = index.descend(Position(index.root, 0), tokens, len(tokens) // machine.model.width)
    if machine.cache.state.wanted is not None:
        machine.cache.state.wanted.to_lower[at.node] = None
    plan_once(machine, 6)
    finish_all(machine, copied=True)


def begin_one(
    machine: MachineState,
    data: st.DataObject,
    lease: ModelLease,
    sequence: Sequence,
    located: Located,
    path: Path,
    there: list[bytes],
) -> None:
    """Begins to read pages that are there, and judges what went for them."""
    free = machine.model.free_slots()
    lasting = machine.model.lasting_in(FIRST)
    usable = lease.usable(lasting)
    read = machine.cache.begin_read(
        machine.caller(lease), machine.namespace_id, sequence, len(there), located
    )
    under_way = {p for known in machine.model.disk.reads.values() for p in known.planned}
    fresh = list(takewhile(lambda each: each not in under_way, there))
    if read is not None and read.callers > 1:
        assert not fresh, "a read that is under way was to be waited for"
        assert there[0] in machine.model.disk.reads[id(read)].planned
        return
    assert bool(fresh) == bool(there), "a page is read twice"
    count = 0 if read is None else len(read.targets)
    assert count <= len(fresh)
    targets = [] if read is None else [pair(slot) for slot in read.targets]
    held = machine.model.held(FIRST) | machine.model.held_in([path], FIRST)
    gone = machine.model.judge_dropped(machine.cached_now(), FIRST, held)
    machine.model.forget_ends()
    most = max(len(fresh) - len(free), 0) if len(usable) == len(lasting) else 0
    assert len(gone) <= most, "more was evicted than a read needs"
    if count < len(fresh):
        left = {slot for slot in machine.model.free_slots() if slot[0] in usable}
        assert left <= set(targets), "fewer pages are read than could be"
    if read is None:
        return
    assert set(targets) <= machine.model.free_slots(), "a slot in use is read into"
    assert {slot[0] for slot in targets} <= usable
    pages = list(zip(fresh[:count], targets, strict=True))
    good = data.draw(st.sampled_from([count, count, 0, count // 2]))
    planned = [each for each, _ in pages]
    known = ModelDiskRead(path, pages, good, machine.model.disk.removals, planned)
    machine.model.disk.reads[id(read)] = known
    machine.reads.append(read)
    COUNTS["pages loading"] += count


@precondition(lambda machine: bool(machine.model.leases and whole(machine)))
@rule(data=st.data(), then=st.sampled_from(["nothing", "a split", "a cut"]))
def offer_what_is_not_there(machine: MachineState, data: st.DataObject, then: str) -> None:
    """Offers matched pages that are not on the disk to it, however often it was offered them."""
    COUNTS["offer_what_is_not_there"] += 1
    lease = machine.member(data)
    if lease is None:
        return
    tell(machine)
    tokens = data.draw(st.sampled_from(whole(machine)))
    pin_id, caller = machine.fresh(), machine.caller(lease)
    sequence = Sequence(tokens + machine.tokens([0]))
    options = MatchOptions(pin_id)
    match = machine.cache.match(caller, machine.namespace_id, sequence, options, machine.now)
    machine.cache.release(caller, [pin_id], machine.now)
    lease.dead_pins.add(pin_id)
    offered = plan(machine, data, 10_000)
    found = machine.model.prefixes(sequence.tokens[: match.matched_token_count * 4])
    assert offered.issuperset(set(found) - machine.model.disk.prefixes - machine.just_written)
    finish_keeping(machine, range(len(machine.writes)))
    if then == "a split":
        pages = data.draw(st.integers(0, len(tokens) // machine.model.width - 1))
        acquire_one(machine, lease, tokens[: pages * machine.model.width] + machine.tokens([2]), 0)
    elif then == "a cut":
        # All but one page of what may go goes: the tail of what was just used, as a rule.
        evictable = len(machine.model.first) - len(machine.model.held(FIRST))
        count = max(len(machine.model.free_slots()) + evictable - 1, 1)
        request = ReservationRequest(machine.fresh(), 0, count)
        if reserve_and_check(machine, lease, [request]):
            machine.cache.abort(caller, [request.reservation_id], machine.now)
            del lease.reservations[request.reservation_id]
            lease.dead_reservations.add(request.reservation_id)


@precondition(lambda machine: machine.reads)
@rule()
def finish_loads(machine: MachineState) -> None:
    """Finishes the reads that were begun before."""
    COUNTS["finish_loads"] += 1
    finish_loading(machine)


def finish_loading(machine: MachineState) -> None:
    """Finishes all reads under way, and compares."""
    for read in machine.reads:
        known = machine.model.disk.reads.pop(id(read))
        known.good = 0 if known.is_cut else known.good
        intact = machine.model.attached(known.path) == known.path
        may = intact and known.removals == machine.model.disk.removals
        good = known.pages[: known.good] if may else []
        good = list(takewhile(lambda page: page[1][0] in machine.model.lasting, good))
        checksums = []
        for prefix, slot in known.pages[: known.good]:
            machine.model.memory[slot] = prefix
            machine.digests[slot] = crc32(prefix, slot[1]) + 1
            machine.flipped.discard(slot)
            checksums.append(machine.digests[slot])
        published = machine.cache.finish_read(read, known.good, checksums)
        fresh = [each for each in good if each[0] not in machine.model.cached]
        for prefix, slot in fresh:
            machine.model.publish(prefix, slot)
        assert published == len(fresh), "another number of pages was published"
        COUNTS["pages loaded"] += published
    machine.reads.clear()
