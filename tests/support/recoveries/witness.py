"""A witness of a cache with a journal: it recovers from every write of every call.

The cache's own index and holds, before and after a call, say what an answer promised. The
generations, at each write, say what may be there. So the check trusts no record.
"""

from array import array
from collections import Counter, deque
from collections.abc import Callable
from functools import partial, wraps
from random import Random
from typing import ParamSpec, TypeVar

from kvstore.core.cache import PrefixCache
from kvstore.core.index.node import Position
from kvstore.core.index.radix import path_tokens
from kvstore.core.invariants.check import Invariants
from kvstore.core.journal.journal import Journal
from kvstore.core.journal.rows import Table
from kvstore.core.leases.lease import Lease
from kvstore.core.pool.namespace import Namespace
from kvstore.core.recovery.head_start import Declined, HeadStart
from kvstore.core.recovery.recover import Recovered, recover
from kvstore.core.values.slots import INDEX_BITS, INDEX_MASK, Slots, SlotState
from recoveries.cleaned_memory import CleanedMemory
from recoveries.list_memory import ListMemory, Moment, Remains, WatchedGenerations
from recoveries.snapshot import Copy, Snapshot

MakeCache = Callable[[], PrefixCache]
# The number of moments that a head start may begin at.
MOMENTS = 15
Given = ParamSpec("Given")
Answer = TypeVar("Answer")


class Witness:
    """Watches each call of a cache, and recovers from each of its writes.

    ``recoveries`` counts them. ``memory`` is the journal's, and ``remains`` are what is written
    there by now. ``make`` makes an empty cache like the one that is watched. ``ahead`` counts the
    head starts by their outcome.
    """

    def __init__(
        self,
        cache: PrefixCache,
        make: MakeCache,
        memory: ListMemory | None = None,
        *,
        has_head_starts: bool = False,
    ) -> None:
        """``make`` makes an empty cache like ``cache``, without a journal.

        The memory is a list by default. With ``has_head_starts`` a second recovery from each
        write begins at earlier ones, and has to come to the same.
        """
        self.recoveries = 0
        self.ahead = Counter[str]()
        self._moments: deque[Moment] | None = deque(maxlen=MOMENTS) if has_head_starts else None
        self._cache = cache
        self.make = make
        self.memory = ListMemory() if memory is None else memory
        self.remains = Remains()
        self._done = 0
        self._watched: set[int] = set()
        # Every page that was ever published, by slot and generation, and those that left.
        self._published: dict[tuple[int, int], tuple[bytes, bytes]] = {}
        self._left: set[tuple[int, int]] = set()
        self._before = Snapshot(cache)
        cache.state.journal_to(Journal(self.memory))
        self.memory.follow(cache)
        add_extent = cache.add_extent
        for name, verb in list(vars(cache).items()):
            if callable(verb):
                setattr(cache, name, self._watch(verb))
        cache.add_extent = self._watch(partial(self._add_extent, add_extent))  # type: ignore[method-assign]

    def recover(self, now: float) -> Recovered:
        """Recovers from all writes so far."""
        return recover(self.remains.written(), self.remains.tables(), self.make, now)

    def _add_extent(
        self,
        verb: Callable[..., None],
        arena_id: int,
        extent_id: int,
        slot_count: int,
        arena_offset: int = 0,
    ) -> None:
        table = WatchedGenerations(extent_id, slot_count, self.memory.writes)
        verb(arena_id, extent_id, slot_count, table, arena_offset)

    def _watch(self, verb: Callable[Given, Answer]) -> Callable[Given, Answer]:
        @wraps(verb)
        def watched(*args: Given.args, **kwargs: Given.kwargs) -> Answer:
            try:
                return verb(*args, **kwargs)
            finally:
                self._check()

        return watched

    def _check(self) -> None:
        """Recovers from every write of a call that is over."""
        for namespace in self._cache.namespaces.values():
            if id(namespace) not in self._watched:
                self._watched.add(id(namespace))
                self._watch_index(namespace)
        writes = self.memory.writes
        if self._done == len(writes):
            return
        before, after = self._before, Snapshot(self._cache)
        while self._done < len(writes):
            self.remains.add(writes[self._done])
            self._done += 1
            last = self._done == len(writes)
            self._recover_and_compare(before, after, last=last)
        gone = before.slots - after.slots
        self._left |= gone
        self._before = after

    def _watch_index(self, namespace: Namespace) -> None:
        """Remembers what is published in a namespace."""
        index = namespace.index
        extend, width = index.extend, index.width

        def watched(at: Position, tokens: bytes, slots: Slots) -> Position:
            above = path_tokens(at, width)
            for number, slot in enumerate(slots):
                generation = namespace.extents[slot >> INDEX_BITS].generations[slot & INDEX_MASK]
                path = above + tokens[: (number + 1) * width]
                self._published[slot, generation] = (namespace.namespace_id, path)
            return extend(at, tokens, slots)

        index.extend = watched  # type: ignore[method-assign]

    def _recover_and_compare(self, before: Snapshot, after: Snapshot, *, last: bool) -> None:
        self.recoveries += 1
        tables = self.remains.tables()
        generations = {extent_id: table[:] for extent_id, table in tables.items()}
        recovered = recover(self.remains.written(), tables, self.make, 1e6)
        cache = recovered.cache
        Invariants(cache).check()
        found = Snapshot(cache)
        if self._moments is not None:
            self._start_ahead(self._moments, generations, tables, recovered, found)
        _check_generations(generations, tables, found)
        self._check_pages(before, after, found, generations)
        _check_holds(before, after, found)
        live = self._cache
        is_whole = not (after.emptying or live.table.ending or live.state.condemned)
        if last and is_whole:
            _check_whole(after, found)
            _check_counts(self._cache, cache)
            if isinstance(self.memory, CleanedMemory):
                # Once more, from the generations that this recovery left.
                again = Snapshot(self.memory.successor(tables, self.make, 1e6))
                _check_whole(after, again)
        else:
            # Whatever the call was, its end comes to the same.
            assert found.slots.isdisjoint(self._left), "a removed page is back"

    def _start_ahead(
        self,
        moments: deque[Moment],
        generations: dict[int, "array[int]"],
        expected: dict[int, "array[int]"],
        recovered: Recovered,
        snapshot: Snapshot,
    ) -> None:
        """Recovers once more, from a head start whose parts were read one after the other."""
        if moments and moments[-1].generations.keys() != generations.keys():
            # A head start from before a new extent is declined, which unit tests show.
            moments.clear()
        moments.append(self.remains.moment())
        first, second, third = sorted(Random(self.recoveries).choices(range(len(moments)), k=3))
        contents, _, end = moments[first]
        rows = {**contents.rows, Table.HOLDS: moments[second].contents.rows.get(Table.HOLDS, {})}
        tables = {extent_id: table[:] for extent_id, table in generations.items()}
        try:
            begun = HeadStart(
                contents._replace(rows=rows), moments[third].generations, self.make, 1e6
            )
            ahead = begun.complete(self.remains.written(end), tables, self.make, 1e6)
        except Declined as declined:
            self.ahead[f"ahead: {declined}"] += 1
            assert tables == generations, "a head start that was declined wrote something"
            return
        self.ahead["ahead: completed"] += 1
        Invariants(ahead.cache).check()
        assert vars(Snapshot(ahead.cache)) == vars(snapshot), "a head start comes to another cache"
        assert tables == expected, "a head start comes to other generations"
        one, other = ahead._written, recovered._written
        assert one.next_id == other.next_id, "a head start comes to another id"
        assert one.next_number == other.next_number, "a head start comes to another number"

    def _check_pages(
        self,
        before: Snapshot,
        after: Snapshot,
        found: Snapshot,
        generations: dict[int, "array[int]"],
    ) -> None:
        for place, copy in found.pages.items():
            known = place in before.pages and before.pages[place][:2] == copy[:2]
            known = known or (place in after.pages and after.pages[place][:2] == copy[:2])
            truth = self._published.get((copy.slot, copy.generation))
            assert known or truth == (place[0], place[2]), "a page is in another's slot"
        for place, copy in before.pages.items():
            if after.pages.get(place) != copy or not _is_there(copy, generations):
                continue
            is_there = found.pages.get(place) == copy
            assert is_there or after.is_leaving(place), "an acknowledged page is lost"


def _is_there(copy: Copy, generations: dict[int, "array[int]"]) -> bool:
    table = generations.get(copy.slot >> INDEX_BITS)
    return table is not None and table[copy.slot & INDEX_MASK] == copy.generation


def _check_generations(
    before: dict[int, "array[int]"], after: dict[int, "array[int]"], found: Snapshot
) -> None:
    """Checks that each slot that is FREE now has moved, and that no other one has."""
    for slot, state in found.states.items():
        extent_id, index = slot >> INDEX_BITS, slot & INDEX_MASK
        moved = after[extent_id][index] > before[extent_id][index]
        assert moved == (state is SlotState.FREE), "a slot is FREE under its old generation"


def _check_holds(before: Snapshot, after: Snapshot, found: Snapshot) -> None:
    """Checks what leases had before a call and have after it."""
    for key in before.pins.keys() & after.pins.keys():
        assert key in found.pins, "a pin is lost"
        assert found.pins[key].slots == after.pins[key].slots, "a pin holds other pages"
        for slot in after.pins[key].slots:
            assert found.states[slot] in (SlotState.CACHED, SlotState.DETACHED)
    for key in before.reservations.keys() & after.reservations.keys():
        assert key in found.reservations, "a reservation is lost"
        both = before.reservations[key].own & after.reservations[key].own
        assert both <= found.reservations[key].own, "a reservation lost slots"
    for lost in found.pins.keys() - before.pins.keys() - after.pins.keys():
        raise AssertionError(f"a pin is back: {lost}")
    for lost in found.reservations.keys() - before.reservations.keys() - after.reservations.keys():
        raise AssertionError(f"a reservation is back: {lost}")


def _check_whole(after: Snapshot, found: Snapshot) -> None:
    """Checks that all of an answered call is there."""
    assert found.pages == after.pages, "the index is another"
    assert found.pins == after.pins, "the pins are others"
    assert found.reservations == after.reservations, "the reservations are others"
    assert found.named == after.named, "the named pins are others"
    for place, token in found.ends.items():
        assert after.ends.get(place) == token, "a next token is another"


def _check_counts(live: PrefixCache, recovered: PrefixCache) -> None:
    """Checks that the slots are in the same states, once the processes are back."""
    for lease in recovered.table.leases.values():
        lease.resume()
    Invariants(recovered).check()
    is_copying = live.moves or live.disk_writes or live.disk_reads or live.group_reads
    for arena_id, arena in live.arenas.items():
        counts = list(arena.counts)
        known = recovered.arenas[arena_id].counts if arena_id in recovered.arenas else [0] * 6
        # Nobody copies any more: targets are FREE, and detached pages that only copies held.
        unheld = counts[SlotState.DETACHED] - known[SlotState.DETACHED] if is_copying else 0
        assert unheld >= 0, "more pages are detached"
        counts[SlotState.FREE] += counts[SlotState.MOVING] + unheld
        counts[SlotState.DETACHED] -= unheld
        counts[SlotState.MOVING] = 0
        assert known == counts, "slots are in other states"
    for lease in live.table.leases.values():
        again = recovered.table.leases[lease.tenant, lease.lease_id]
        assert again.number == lease.number
        assert again.processes.keys() == lease.processes.keys()
        assert again.state is lease.state
        assert again.arenas.keys() == lease.arenas.keys()
        assert again.owner.hold_count == lease.owner.hold_count
        assert _tombstones(lease) <= _tombstones(again), "a released id is not known"
    assert recovered.table.leases.keys() == live.table.leases.keys(), "a lease is back"
    for process_id in live.state.mappings.process_ids:
        assert recovered.state.mappings.of(process_id) == live.state.mappings.of(process_id)


def _tombstones(lease: Lease) -> set[object]:
    scopes = (lease.pin_tombstones.scope, lease.reservation_tombstones.scope)
    return {
        key for key in lease.owner.tombstones.until if isinstance(key, tuple) and key[0] in scopes
    }
