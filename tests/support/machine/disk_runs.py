"""The cache machine's rules about disk reads in runs."""

from itertools import takewhile
from zlib import crc32

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from kvstore.core.tiers.read_slots import FREE_ONLY, EvictionBound
from kvstore.core.values.requests import ReservationRequest, Sequence
from machine.disk_writes import tell
from machine.moves import pair
from machine.reservations import reserve_and_check
from machine.state import COUNTS, PAGES, MachineState
from naive.copies import FIRST, Path, Slot
from naive.disk import ModelDiskRead
from naive.holds import ModelLease
from naive.model import is_marker

# A use number beyond all, so that every page is old.
LATEST = 1 << 60
SHARE = 1 / 4
# Goings-on during a read in runs.
STEPS = st.lists(
    st.sampled_from(["take", "publish", "publish", "other pages leave"]), min_size=1, max_size=6
)
BOUNDS = st.sampled_from([None, FREE_ONLY, EvictionBound(SHARE, 0), EvictionBound(SHARE, LATEST)])


@precondition(lambda machine: machine.model.leases and len(machine.reads) < 3)
@rule(data=st.data(), pages=PAGES, run_pages=st.integers(1, 2), bound=BOUNDS, then=STEPS)
def load_in_runs(
    machine: MachineState,
    data: st.DataObject,
    pages: list[int],
    run_pages: int,
    bound: EvictionBound | None,
    then: list[str],
) -> None:
    """Begins to read the pages after the cached ones of a sequence, and perhaps goes on."""
    COUNTS["load_in_runs"] += 1
    begun = begin_in_runs(machine, data, pages, run_pages, bound)
    for each in then if begun else ():
        if each == "take":
            take_a_run(machine, run_pages, bound)
        elif each == "publish":
            publish_a_run(machine, data, run_pages)
        else:
            make_room(machine, data)


def make_room(machine: MachineState, data: st.DataObject) -> None:
    """Takes slots for a moment, so that pages that nobody holds leave memory."""
    lease = machine.member(data)
    if lease is None:
        return
    evictable = len(machine.model.first) - len(machine.model.held(FIRST))
    count = len(machine.model.free_slots()) + evictable
    request = ReservationRequest(machine.fresh(), 0, max(count, 1))
    if reserve_and_check(machine, lease, [request]):
        machine.cache.abort(machine.caller(lease), [request.reservation_id], machine.now)
        del lease.reservations[request.reservation_id]
        lease.dead_reservations.add(request.reservation_id)


def begin_in_runs(
    machine: MachineState,
    data: st.DataObject,
    pages: list[int],
    run_pages: int,
    bound: EvictionBound | None,
) -> bool:
    """Begins to read pages, with slots for a few; returns False if it did not."""
    lease = machine.member(data)
    if lease is None:
        return False
    tell(machine)
    width = machine.model.width
    on_disk = {each for each in machine.model.disk.prefixes if not is_marker(each[-width:])}
    tokens = data.draw(st.sampled_from(sorted({b"", *on_disk}))) + machine.tokens(pages or [0, 1])
    machine.model.disk.prefixes.update(machine.model.prefixes(tokens))
    path = machine.model.longest(tokens, len(tokens) // width)
    caller, sequence = machine.caller(lease), Sequence(tokens)
    located = machine.cache.locate(caller, machine.namespace_id, sequence)
    there = machine.model.prefixes(tokens)[located.end : located.end + located.page_count]
    under_way = {p for known in machine.model.disk.reads.values() for p in known.planned}
    if not there or there[0] in under_way:
        return False
    fresh = list(takewhile(lambda each: each not in under_way, there))
    asked = min(run_pages, len(fresh))
    before = SlotsBefore(machine, lease)
    read = machine.cache.begin_read(
        *(caller, machine.namespace_id, sequence, len(there), located),
        run_pages=run_pages,
        bound=bound,
    )
    slots = [] if read is None else [pair(each) for each in read.targets]
    before.judge(slots, asked, bound, [path])
    if read is not None:
        may_go_on = len(slots) == asked or (bound is not None and bound.share)
        planned = fresh if may_go_on else fresh[: len(slots)]
        assert read.planned_end == len(path) + len(planned), "another plan"
        known = ModelDiskRead(
            path,
            list(zip(planned, slots, strict=False)),
            1,
            machine.model.disk.removals,
            planned,
        )
        machine.model.disk.reads[id(read)] = known
        machine.reads.append(read)
    return read is not None


class SlotsBefore:
    """The slots before a read takes some, and the laws of what it took."""

    def __init__(self, machine: MachineState, lease: ModelLease) -> None:
        self.machine = machine
        self.free = machine.model.free_slots()
        self.lasting = machine.model.lasting_in(FIRST)
        self.usable = lease.usable(self.lasting)
        self.bounded = machine.cache.namespaces[machine.namespace_id].arena.bounded_count

    def judge(
        self, taken: list[Slot], asked: int, bound: EvictionBound | None, paths: list[Path]
    ) -> None:
        """Judges the slots that a read took, and the pages that were evicted for them."""
        machine = self.machine
        held = machine.model.held(FIRST) | machine.model.held_in(paths, FIRST)
        gone = machine.model.judge_dropped(machine.cached_now(), FIRST, held)
        machine.model.forget_ends()
        most = max(asked - len(self.free), 0) if len(self.usable) == len(self.lasting) else 0
        if bound is not None:
            count = sum(self.lasting.values())
            room = max(int(bound.share * count), 1) if bound.share and bound.since else 0
            most = min(most, max(room - self.bounded, 0))
        assert len(gone) <= most, "more was evicted than a read may"
        assert len(taken) == len(set(taken)) <= asked
        assert {slot[0] for slot in taken} <= self.usable
        assert set(taken) <= machine.model.free_slots(), "a slot in use is read into"
        if len(taken) < asked:
            left = {slot for slot in machine.model.free_slots() if slot[0] in self.usable}
            assert left <= set(taken), "fewer slots were taken than could be"
        COUNTS["slots of runs"] += len(taken)


def stale(machine: MachineState, known: ModelDiskRead) -> bool:
    """Returns whether a read cannot publish any more."""
    intact = machine.model.attached(known.path) == known.path
    return not intact or known.removals != machine.model.disk.removals


def take_a_run(machine: MachineState, count: int, bound: EvictionBound | None) -> None:
    """Takes slots for the next pages of a read."""
    read = machine.reads[-1]
    known = machine.model.disk.reads[id(read)]
    assert read.lease is not None
    lease = machine.model.leases.get(read.lease.lease_id)
    asked = min(count, len(known.planned) - len(known.pages))
    if lease is None or stale(machine, known):
        assert machine.cache.take_run(read, count, bound) == 0
        return
    before, had = SlotsBefore(machine, lease), len(read.targets)
    taken = machine.cache.take_run(read, count, bound)
    slots = [pair(each) for each in read.targets[had:]]
    assert len(slots) == taken
    before.judge(slots, asked, bound, [])
    known.pages = list(zip(known.planned, [s for _, s in known.pages] + slots, strict=False))


def publish_a_run(machine: MachineState, data: st.DataObject, count: int) -> None:
    """Publishes the first pages of a read that have slots."""
    read = data.draw(st.sampled_from(machine.reads))
    known = machine.model.disk.reads[id(read)]
    count = min(count, len(known.pages))
    if known.is_cut or not count:
        return
    good = [] if stale(machine, known) else known.pages[:count]
    good = list(takewhile(lambda page: page[1][0] in machine.model.lasting, good))
    checksums = []
    for prefix, slot in known.pages[:count]:
        machine.model.memory[slot] = prefix
        machine.digests[slot] = crc32(prefix, slot[1]) + 1
        machine.flipped.discard(slot)
        checksums.append(machine.digests[slot])
    goes_on = machine.cache.publish_run(read, count, checksums)
    assert goes_on == (len(good) == count), "a read goes on after a gap, or ends without one"
    known.is_cut = not goes_on
    known.pages = known.pages[len(good) :]
    known.planned = known.planned[len(good) :]
    for prefix, slot in good:
        if prefix not in machine.model.cached:
            machine.model.publish(prefix, slot)
    if good:
        prefix = good[-1][0]
        known.path = machine.model.longest(prefix, len(prefix) // machine.model.width)
    COUNTS["pages published in runs"] += len(good)


@precondition(lambda machine: machine.reads)
@rule(data=st.data(), count=st.integers(1, 3), bound=BOUNDS, is_taken=st.booleans())
def go_on_in_runs(
    machine: MachineState,
    data: st.DataObject,
    count: int,
    bound: EvictionBound | None,
    *,
    is_taken: bool,
) -> None:
    """Takes slots for a read that was begun before, or publishes pages of one."""
    COUNTS["go_on_in_runs"] += 1
    if is_taken:
        take_a_run(machine, count, bound)
    else:
        publish_a_run(machine, data, count)
