"""A cache that is recovered more than once from the same journal."""

from collections.abc import Callable

import pytest

from core.core_builders import NAMESPACE_ID, OWNER, CoreWorld, paged
from kvstore.core.cache import PrefixCache
from kvstore.core.invariants.check import Invariants
from kvstore.core.journal.journal import Journal
from kvstore.core.journal.rows import NamespaceRow, Table
from kvstore.core.recovery.recover import recover
from kvstore.core.values.requests import NamedPinRequest
from kvstore.succession.journal.durable_journal import DurableJournal
from kvstore.succession.journal.store_row import StoreRow


class StartedAgain(CoreWorld):
    """A world whose process may end at any time. Its memory stays."""

    def __init__(self) -> None:
        self.memories: dict[str, memoryview] = {}
        super().__init__(slots=8, divides_by_token=True, journal_of=self._begin)
        self.cache.add_extent(1, 2, 8)
        self.worker.map_memory()

    def _begin(self, cache: PrefixCache, make: Callable[[], PrefixCache]) -> None:
        self.make = make
        journal = DurableJournal.create(self._memory, 64 << 10, StoreRow(7, 1, b"", b""))
        cache.state.journal_to(Journal(journal))
        journal.follow(cache)

    def _memory(self, name: str, size_bytes: int) -> memoryview:
        self.memories[name] = memoryview(bytearray(size_bytes))
        return self.memories[name]

    def start(self) -> None:
        """Ends the process, and goes on with what the next one recovers. It cleans all."""
        tables = {
            extent_id: extent.generations
            for arena in self.cache.arenas.values()
            for extent_id, extent in arena.extents.items()
        }
        journal = DurableJournal.open(self.memories)
        recovered = recover(journal.contents(), tables, self.make, self.now)
        recovered.go_on(journal)
        journal.follow(recovered.cache)
        journal.clean(1 << 20, above=0)
        assert journal.given_up is None
        self.cache = self.worker.cache = recovered.cache
        Invariants(self.cache).check()
        self.cache.bind(self.worker.caller, process_id=self.worker.process_id, pid=1, uid=1)
        self.worker.map_memory()


@pytest.fixture
def world() -> StartedAgain:
    """Returns a world of two extents of eight slots."""
    return StartedAgain()


def test_a_retirement_that_was_cut_off_is_written_down(world: StartedAgain) -> None:
    """Its held pages leave for good, and others take their place. So does a named pin."""
    world.worker.publish("abc")
    held = world.worker.match("ab", 5)
    world.cache.pin_prefix(OWNER, NAMESPACE_ID, NamedPinRequest("system", paged("ab")), world.now)
    world.cache.begin_retirement(1, 1)
    world.start()
    assert world.shape() == {}
    assert list(world.cache.visible_named_pins(OWNER, None)) == []
    world.worker.publish("abx")
    for _ in range(2):
        world.start()
        assert world.shape() == {"abx": {}}
        assert world.worker.match("ab", 5) == held
    world.worker.release(5)
    assert world.cache.emptied_extents() == [1]


def test_a_deletion_that_was_cut_off_is_written_down(world: StartedAgain) -> None:
    """The named pins of the namespace end, and the next start does not look for their pages."""
    world.worker.publish("abc")
    world.cache.pin_prefix(OWNER, NAMESPACE_ID, NamedPinRequest("system", paged("ab")), world.now)
    rows = DurableJournal.open(world.memories).contents().rows[Table.NAMESPACES]
    [row] = [each for each in rows.values() if isinstance(each, NamespaceRow)]
    # Its first write is what deletes it.
    assert world.cache.state.journal is not None
    world.cache.state.journal.put(Table.NAMESPACES, row.number, row._replace(deleted=True))
    for _ in range(2):
        world.start()
        assert NAMESPACE_ID not in world.cache.namespaces


def test_a_reservation_may_have_the_id_of_an_earlier_one(world: StartedAgain) -> None:
    """The inserts of the earlier one are not those of the later one."""
    world.worker.acquire("abc", 5, 6)
    world.worker.insert(6, "ab")
    world.worker.abort(6)
    # Its tombstone is dropped after a while.
    world.cache.table.expire_tombstones(world.now + 1_000)
    world.worker.reserve(6, 2)
    reserved = list(world.worker.lease.reservations[6].reserved)
    world.start()
    reservation = world.worker.lease.reservations[6]
    assert (list(reservation.reserved), reservation.inserted) == (reserved, 0)
    assert reservation.own_count == 2
