"""Servers of one memory, one after the other, in this process."""

import mmap
import os
import subprocess
import sys
import weakref
from array import array
from collections.abc import Iterator
from contextlib import closing

import pytest
from xxhash import xxh3_64_intdigest

from kvstore.core.cache import PrefixCache
from kvstore.core.invariants.check import Invariants
from kvstore.core.journal.rows import ExtentRow, MappingRow, ProcessRow, Table
from kvstore.core.recovery.head_start import HeadStart
from kvstore.core.values.layout import NamespaceIdentity, OpaqueContent, PageLayout
from kvstore.core.values.limits import Limits
from kvstore.core.values.requests import (
    Caller,
    Identity,
    MatchOptions,
    ReservationRequest,
    Sequence,
)
from kvstore.service.attached_processes import Process, Processes
from kvstore.service.random_ids import random_ids
from kvstore.service.store import KVStore
from kvstore.storage.arenas import Arenas
from kvstore.storage.held_memory import data_name, process_name
from kvstore.storage.host.host_memory import HostMemory
from kvstore.succession import samples
from kvstore.succession.clean_start import CleanStart
from kvstore.succession.journal.durable_journal import DurableJournal
from kvstore.succession.store_succession import Succession
from stores.memory_carrier import MemoryCarrier
from stores.store_world import PAGE_BYTES, PAGE_TOKENS, ManualClock, sequence_of
from wire.own_logs import own_logs

JOURNAL_BYTES = 64 << 10
SETTINGS = {"device": "cpu"}
LAYOUT = PageLayout(
    PAGE_TOKENS, PAGE_BYTES, 1, OpaqueContent(b"fingerprint", divides_by_token=True)
)
PAGES = 3


def new_cache(epoch: int) -> PrefixCache:
    """Returns an empty cache of an epoch."""
    return PrefixCache(epoch, Limits(), arena_ids=random_ids())


def head_start_of(ahead: Succession) -> "weakref.ref[HeadStart]":
    """Returns a reference that does not keep the trees of what was read ahead."""
    assert ahead._ahead is not None
    assert ahead._ahead.head_start is not None
    return weakref.ref(ahead._ahead.head_start)


def prepared(carrier: MemoryCarrier, **settings: str) -> Succession:
    """Returns a succession that read the memory of a server which is still at work."""
    succession = Succession(carrier, settings=SETTINGS | settings, journal_bytes=JOURNAL_BYTES)
    succession.prepare(new_cache, ManualClock())
    return succession


class Server:
    """A store over the memory that a carrier keeps, until its end as by SIGKILL."""

    def __init__(
        self,
        carrier: MemoryCarrier,
        *,
        slots: int = 8,
        ahead: Succession | None = None,
        **settings: str,
    ) -> None:
        """``ahead`` is a succession that read the memory already."""
        self.clock = ManualClock()
        self.succession = ahead or Succession(
            carrier, settings=SETTINGS | settings, journal_bytes=JOURNAL_BYTES
        )
        self.succession.own()
        self.arenas = Arenas(
            budget_bytes=slots * PAGE_BYTES,
            extent_bytes=4 * PAGE_BYTES,
            source=HostMemory(held=self.succession.held),
            extent_ids=random_ids(),
        )
        with own_logs() as lines:
            self.cache = self.succession.begin(
                [self.arenas],
                new_cache,
                self.clock,
            )
        self.log = {str(line["event"]): line for line in lines}
        self.store = KVStore(
            self.cache, arenas=self.arenas, clock=self.clock, succession=self.succession
        )
        self.processes = Processes(self.succession.held, self.succession.left)
        self.processes.restore(Process(*each) for each in self.succession.processes)
        Invariants(self.cache).check()

    def worker(self) -> tuple[Caller, int]:
        """Returns a caller whose lease has a process of this machine, and its number."""
        caller = Caller(Identity("tenant"), os.urandom(16), b"secret", self.cache.epoch)
        self.store.grant(caller, ttl=10.0, display_name="worker", features=())
        pidfd = os.pidfd_open(os.getpid())
        process = self.processes.attach(os.getpid(), pidfd, caller.lease_id)
        os.close(pidfd)
        self.store.bind(caller, process_id=process.process_id, pid=process.pid, uid=1)
        return caller, process.process_id

    def publish(self, caller: Caller, process_id: int) -> bytes:
        """Inserts three pages with checksums; returns their namespace."""
        identity = NamespaceIdentity(b"model digest 16+")
        namespace = self.store.open_namespace(caller, identity, LAYOUT)
        owed = self.store.hand_out(process_id)
        self.store.acknowledge(process_id, [each.shape.extent_id for each in owed])
        [grant] = self.store.reserve(
            caller, namespace.namespace_id, [ReservationRequest(1, 0, PAGES)]
        )
        slots = [run.extent_id << 32 | index for run in grant.runs for index in run.indexes]
        contents = [bytes([number + 1]) * PAGE_BYTES for number in range(PAGES)]
        self.arenas.write_all(zip(slots, map(memoryview, contents), strict=True))
        checksums = [xxh3_64_intdigest(each) for each in contents]
        self.store.insert(caller, 1, sequence_of(PAGES, rest=0), checksums=checksums)
        self.store.abort(caller, [1])
        return namespace.namespace_id

    def found(self, namespace_id: bytes) -> int:
        """Returns how many pages of the sequence are cached."""
        tokens = array("I", range(PAGES * PAGE_TOKENS + 1)).tobytes()
        identity = Identity("tenant")
        peeked = self.store.peek(identity, namespace_id, Sequence(tokens).tokens)
        return peeked.matched_token_count // PAGE_TOKENS

    def end(self) -> None:
        """Ends the server as SIGKILL does, except that the kernel would close its descriptors."""
        self.processes.close()
        self.arenas.close()
        self.succession.close()


@pytest.fixture
def carrier() -> Iterator[MemoryCarrier]:
    """Provides a carrier without deposits."""
    made = MemoryCarrier()
    yield made
    made.end()


def journal_of(carrier: MemoryCarrier) -> DurableJournal:
    """Opens the journal that a server left, to write what the server could have written."""
    memories = {}
    for name, each in carrier.held.items():
        if name.startswith("journal-"):
            memories[name] = memoryview(mmap.mmap(each, os.fstat(each).st_size))
    return DurableJournal.open(memories)


def bytes_of(carrier: MemoryCarrier) -> dict[str, bytes]:
    """Returns the content of the journal's memory."""
    return {
        name: os.pread(each, os.fstat(each).st_size, 0)
        for name, each in carrier.held.items()
        if name.startswith("journal-")
    }


def extents_of(carrier: MemoryCarrier) -> list[str]:
    """Returns the names of extents' memory."""
    return [name for name in carrier.held if name.endswith(".data")]


def test_the_next_server_has_the_pages_and_the_key(carrier: MemoryCarrier) -> None:
    """The epoch and the key of credentials stay, and each server has a number."""
    first = Server(carrier)
    namespace_id = first.publish(*first.worker())
    first.end()
    second = Server(carrier)
    assert second.found(namespace_id) == PAGES
    assert second.cache.epoch == first.cache.epoch
    assert second.succession.credential_key == first.succession.credential_key
    assert (first.succession.instance, second.succession.instance) == (1, 2)
    line = second.log["store_recovered"]
    assert (line["pages"], line["leases"], line["processes"]) == (PAGES, 1, 1)
    second.end()


def test_a_server_that_read_ahead_has_what_came_since(carrier: MemoryCarrier) -> None:
    """Pages, leases and holds of before and afterwards."""
    first = Server(carrier)
    caller, process_id = first.worker()
    namespace_id = first.publish(caller, process_id)
    ahead = prepared(carrier)
    first.worker()
    first.store.reserve(caller, namespace_id, [ReservationRequest(2, 0, 1)])
    first.end()
    second = Server(carrier, ahead=ahead)
    line = second.log["store_recovered"]
    assert (line["pages"], line["leases"], line["head_start"]) == (PAGES, 2, "completed")
    assert second.found(namespace_id) == PAGES
    second.end()


def test_without_a_carrier_there_is_nothing_to_read_ahead() -> None:
    """As for all methods of a succession."""
    succession = Succession()
    succession.prepare(new_cache, ManualClock())
    assert not succession.owned


def test_other_settings_are_refused_ahead(carrier: MemoryCarrier) -> None:
    """The server that is at work goes on, and nothing of its memory is dropped."""
    first = Server(carrier)
    namespace_id = first.publish(*first.worker())
    with pytest.raises(CleanStart, match="these settings changed: device"):
        prepared(carrier, device="cuda")
    with pytest.raises(CleanStart, match="the journal is unusable"):
        prepared(MemoryCarrier())
    assert first.found(namespace_id) == PAGES
    first.end()


def test_a_head_start_that_fails_costs_only_its_time(
    carrier: MemoryCarrier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A recovery from nothing does not depend on it, in whatever part it fails."""
    first = Server(carrier)
    namespace_id = first.publish(*first.worker())
    ahead = prepared(carrier)
    first.end()

    def fail(*_: object) -> None:
        raise ValueError("a fault")

    def fail_otherwise(*_: object) -> None:
        raise IndexError("a fault")

    head_start = head_start_of(ahead)
    with monkeypatch.context() as patch:
        patch.setattr(HeadStart, "complete", fail)
        server = Server(carrier, ahead=ahead)
    assert head_start() is None
    assert "a fault" in str(server.log["store_recovered"]["head_start"])
    assert server.found(namespace_id) == PAGES
    for each in (fail, fail_otherwise):
        with monkeypatch.context() as patch:
            patch.setattr(HeadStart, "__init__", each)
            ahead = prepared(carrier)
        server.end()
        server = Server(carrier, ahead=ahead)
        assert server.log["store_recovered"]["head_start"] == "none"
        assert server.found(namespace_id) == PAGES
    server.end()


def test_settings_are_compared_also_where_no_trees_are_built(carrier: MemoryCarrier) -> None:
    """Then a recovery from nothing goes on with what was read."""
    first = Server(carrier)
    namespace_id = first.publish(*first.worker())
    other = Succession(carrier, settings={"device": "cuda"}, journal_bytes=JOURNAL_BYTES)
    with pytest.raises(CleanStart, match="these settings changed: device"):
        other.prepare(None, ManualClock())
    ahead = Succession(carrier, settings=SETTINGS, journal_bytes=JOURNAL_BYTES)
    ahead.prepare(None, ManualClock())
    first.end()
    second = Server(carrier, ahead=ahead)
    assert second.log["store_recovered"]["head_start"] == "none"
    assert second.found(namespace_id) == PAGES
    second.end()


def test_a_head_start_of_other_memory_is_not_used(carrier: MemoryCarrier) -> None:
    """The store that it read began anew meanwhile, with another journal."""
    first = Server(carrier)
    first.publish(*first.worker())
    ahead = prepared(carrier)
    first.end()
    second = Server(carrier, device="cuda")
    namespace_id = second.publish(*second.worker())
    second.end()
    ahead._settings = {"device": "cuda"}
    head_start = head_start_of(ahead)
    third = Server(carrier, ahead=ahead)
    assert third.log["store_recovered"]["head_start"] == "none"
    # Its trees are no part of what collections of garbage leave out.
    assert head_start() is None
    assert third.found(namespace_id) == PAGES
    third.end()


def with_dead_records(server: Server, caller: Caller, namespace_id: bytes) -> DurableJournal:
    """Returns a server's journal after many reservations that ended."""
    for number in range(2, 40):
        server.store.reserve(caller, namespace_id, [ReservationRequest(number, 0, 1)])
        server.store.abort(caller, [number])
    assert server.succession.journal is not None
    return server.succession.journal


def test_a_store_that_leaves_cleans_its_journal(carrier: MemoryCarrier) -> None:
    """The next server reads only what is live. Without time, or a journal, nothing happens."""
    first = Server(carrier)
    caller, process_id = first.worker()
    namespace_id = first.publish(caller, process_id)
    journal = with_dead_records(first, caller, namespace_id)
    used = journal.used_bytes
    first.store.cleaning.finish(0.0)
    assert journal.used_bytes == used
    first.store.cleaning.finish(5.0)
    assert journal.used_bytes < used / 2
    first.end()
    second = Server(carrier)
    assert second.found(namespace_id) == PAGES
    second.succession.journal = None
    second.store.cleaning.finish(5.0)
    second.end()


def test_a_journal_is_cleaned_for_a_server_that_is_about_to_read_it(
    carrier: MemoryCarrier,
) -> None:
    """The cleaner's thread then cleans all of it once. Else it leaves a ring with room alone."""
    first = Server(carrier)
    caller, process_id = first.worker()
    namespace_id = first.publish(caller, process_id)
    journal = with_dead_records(first, caller, namespace_id)
    cleaning = first.store.cleaning
    used = journal.used_bytes
    cleaning.step()
    assert (journal.used_bytes, cleaning.due.is_set()) == (used, False)
    cleaning.begin()
    assert cleaning.due.is_set()
    first.clock.now += 2.0
    cleaning.step()
    # The next server does not wait any more.
    assert journal.used_bytes == used
    cleaning.begin()
    cleaning.step()
    cleaned = journal.used_bytes
    assert cleaned < used / 2
    cleaning.step()
    assert journal.used_bytes == cleaned
    first.succession.journal = None
    cleaning.due.clear()
    cleaning.begin()
    cleaning.step()
    assert not cleaning.due.is_set()
    first.end()


def test_a_lease_goes_on_when_its_process_attaches(carrier: MemoryCarrier) -> None:
    """Until then it has no part in requests, and then it holds what it held."""
    first = Server(carrier)
    caller, process_id = first.worker()
    namespace_id = first.publish(caller, process_id)
    first.store.match(caller, namespace_id, sequence_of(PAGES), MatchOptions(5))
    first.end()
    second = Server(carrier)
    [lease] = second.cache.table.leases.values()
    assert lease.suspended
    assert list(lease.pins) == [5]
    pidfd = os.pidfd_open(os.getpid())
    with closing(second.processes):
        process = second.processes.attach(os.getpid(), pidfd, caller.lease_id)
        os.close(pidfd)
        assert process.process_id == process_id
        second.store.bind(caller, process_id=process_id, pid=process.pid, uid=1)
        assert not lease.suspended
        second.store.release(caller, [5])
    second.arenas.close()


def test_ttls_begin_when_the_server_answers(carrier: MemoryCarrier) -> None:
    """A start that takes long expires no lease."""
    first = Server(carrier)
    first.worker()
    first.end()
    second = Server(carrier)
    second.clock.now += 60
    second.store.restart_ttls()
    second.store.expire()
    [lease] = second.cache.table.leases.values()
    assert lease.expired_at is None
    second.clock.now += 60
    second.store.expire()
    assert not second.cache.table.leases
    second.end()


def test_deposits_without_a_row_are_dropped(carrier: MemoryCarrier) -> None:
    """A server was killed before it wrote them down."""
    first = Server(carrier)
    first.publish(*first.worker())
    first.succession.held.make(data_name(77), PAGE_BYTES)
    pidfd = os.pidfd_open(os.getpid())
    first.succession.held.keep(process_name(9), pidfd)
    os.close(pidfd)
    before = carrier.held.keys() - {data_name(77), process_name(9)}
    first.end()
    second = Server(carrier)
    assert carrier.held.keys() == before
    second.end()


def test_rows_without_a_deposit_are_cleared(carrier: MemoryCarrier) -> None:
    """An extent that never was, a process whose lease ended, and a mapping of nothing."""
    first = Server(carrier)
    namespace_id = first.publish(*first.worker())
    [arena_id] = first.cache.arenas
    first.end()
    journal = journal_of(carrier)
    journal.put(Table.EXTENTS, 77, ExtentRow(77, arena_id, "tenant", PAGE_BYTES, 1, 1, 4, 1 << 30))
    journal.put(Table.PROCESSES, 9, ProcessRow(9, 1, 1, 1234))
    journal.put(Table.MAPPINGS, 8, MappingRow(8, 1, (77,)))
    second = Server(carrier)
    assert second.found(namespace_id) == PAGES
    second.end()
    rows = journal_of(carrier).contents().rows
    assert 77 not in rows[Table.EXTENTS]
    assert 9 not in rows[Table.PROCESSES]
    assert 8 not in rows[Table.MAPPINGS]


def test_a_dead_process_is_inherited_too(carrier: MemoryCarrier) -> None:
    """Its pidfd tells the next server that it died, so what it held returns."""
    first = Server(carrier)
    caller, process_id = first.worker()
    first.publish(caller, process_id)
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    pidfd = os.pidfd_open(child.pid)
    other = first.processes.attach(child.pid, pidfd, caller.lease_id)
    os.close(pidfd)
    first.store.bind(caller, process_id=other.process_id, pid=child.pid, uid=1)
    first.end()
    child.kill()
    child.communicate()
    second = Server(carrier)
    assert [second.processes.died(each.process_id) for each in second.processes] == [False, True]
    second.end()


@pytest.mark.parametrize(
    ("name", "why"),
    [("process-1", "the pidfd of process 1 is missing"), ("journal-holds", "journal is unusable")],
)
def test_without_a_part_nothing_is_used(carrier: MemoryCarrier, name: str, why: str) -> None:
    """The next server begins empty, with another epoch, and drops what was there."""
    first = Server(carrier)
    first.publish(*first.worker())
    first.end()
    extents = extents_of(carrier)
    carrier.drop([name])
    second = Server(carrier)
    assert why in str(second.log["clean_start"]["why"])
    assert second.cache.epoch != first.cache.epoch
    assert not second.cache.namespaces
    assert second.arenas.allocated_bytes == 0
    assert not carrier.held.keys() & set(extents)
    assert second.succession.outlives
    second.end()


def test_a_recovery_that_fails_writes_nothing(
    carrier: MemoryCarrier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that is killed before it is sure leaves the same journal to the next one."""
    first = Server(carrier)
    namespace_id = first.publish(*first.worker())
    first.end()
    before, held = bytes_of(carrier), dict(carrier.held)
    # This one finds something wrong, and is killed before it drops anything.
    lost = {"process-1": carrier.held.pop("process-1")}
    with monkeypatch.context() as killed:
        killed.setattr(carrier, "drop", lambda _: True)
        killed.setattr(carrier, "make", _refuse)
        with pytest.raises(MemoryError):
            Server(carrier)
    assert bytes_of(carrier) == before
    carrier.held |= lost
    assert carrier.held == held
    second = Server(carrier)
    assert second.found(namespace_id) == PAGES
    second.end()


def _refuse(name: str, size_bytes: int) -> int:
    raise MemoryError(f"{name}: {size_bytes}")


def test_pages_with_other_bytes_are_a_clean_start(carrier: MemoryCarrier) -> None:
    """Memory of another extent under this one's name is never matched."""
    first = Server(carrier)
    first.publish(*first.worker())
    first.end()
    [name] = extents_of(carrier)
    os.pwrite(carrier.held[name], bytes(4 * PAGE_BYTES), 0)
    second = Server(carrier)
    assert "has other bytes than were written" in str(second.log["clean_start"]["why"])
    second.end()


def test_an_extent_is_proven_before_anybody_maps_it(
    carrier: MemoryCarrier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that was not sampled before the first answer is sampled before it is handed out."""
    monkeypatch.setattr(samples, "MOST_BEFORE_ANSWERS", 0)
    first = Server(carrier)
    namespace_id = first.publish(*first.worker())
    first.end()
    [name] = extents_of(carrier)
    os.pwrite(carrier.held[name], bytes(4 * PAGE_BYTES), 0)
    second = Server(carrier)
    assert second.found(namespace_id) == PAGES
    caller, process_id = second.worker()
    identity = NamespaceIdentity(b"model digest 16+")
    second.store.open_namespace(caller, identity, LAYOUT)
    [wrong] = second.arenas._extents.keys() & {int(name.split("-")[1].split(".")[0])}
    assert second.store.hand_out_again(process_id, [wrong]) == []
    assert wrong not in [each.shape.extent_id for each in second.store.hand_out(process_id)]
    assert second.found(namespace_id) == 0
    second.end()


def test_extents_that_nobody_asks_for_are_proven_too(
    carrier: MemoryCarrier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread samples them beside requests, and right ones stay."""
    monkeypatch.setattr(samples, "MOST_BEFORE_ANSWERS", 0)
    first = Server(carrier)
    namespace_id = first.publish(*first.worker())
    first.end()
    for bytes_are_right in (True, False):
        if not bytes_are_right:
            [name] = extents_of(carrier)
            os.pwrite(carrier.held[name], bytes(4 * PAGE_BYTES), 0)
        server = Server(carrier)
        server.store.prove_all()
        assert server.found(namespace_id) == PAGES * bytes_are_right
        server.end()


def test_less_memory_than_is_in_use_is_a_clean_start(carrier: MemoryCarrier) -> None:
    """More memory is not."""
    first = Server(carrier)
    namespace_id = first.publish(*first.worker())
    first.end()
    second = Server(carrier, slots=16)
    assert second.found(namespace_id) == PAGES
    second.end()
    third = Server(carrier, slots=3)
    assert "does not fit" in str(third.log["clean_start"]["why"])
    third.end()


def attach_child(server: Server) -> "subprocess.Popen[bytes]":
    """Attaches a process that does nothing; returns it."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    pidfd = os.pidfd_open(child.pid)
    caller, _ = server.worker()
    server.processes.attach(child.pid, pidfd, caller.lease_id)
    os.close(pidfd)
    return child


def left_in(carrier: MemoryCarrier) -> list[str]:
    """Returns the names of what clean starts left."""
    return [name for name in carrier.held if name.startswith("left-")]


@pytest.mark.parametrize("end", ["a change of settings", "a damaged journal"])
def test_memory_of_living_workers_counts_as_taken(carrier: MemoryCarrier, end: str) -> None:
    """Until they are dead or have attached to this server: old and new never exceed the budget."""
    first = Server(carrier)
    child = attach_child(first)
    first.publish(*first.worker())
    taken = first.arenas.allocated_bytes
    first.end()
    if end == "a damaged journal":
        carrier.drop(["journal-holds"])
    second = Server(carrier, device="another")
    assert not second.cache.namespaces
    assert second.succession.left.look() == taken
    room = second.arenas.room(PAGE_BYTES)
    assert room * PAGE_BYTES == second.arenas.budget_bytes - taken
    assert second.log["memory_left_behind"]["pids"] == sorted([child.pid, os.getpid(), os.getpid()])
    # One that is killed leaves it to the next, which goes on with a journal of its own.
    second.end()
    third = Server(carrier, device="another")
    assert "store_recovered" in third.log
    assert third.arenas.room(PAGE_BYTES) == room
    third.worker()
    assert not third.succession.count_left()
    child.kill()
    child.communicate()
    third.store.count_left()
    assert third.store.growth.due.is_set()
    assert third.arenas.room(PAGE_BYTES) * PAGE_BYTES == third.arenas.budget_bytes
    assert left_in(carrier) == []
    third.end()


def test_memory_of_dead_workers_is_free_at_once(carrier: MemoryCarrier) -> None:
    """Nobody has it mapped after a clean start."""
    first = Server(carrier)
    first.publish(*first.worker())
    child = attach_child(first)
    for each in first.processes:
        if each.pid != child.pid:
            first.processes.forget(each.process_id)
    first.end()
    child.kill()
    child.communicate()
    second = Server(carrier, device="another")
    assert second.succession.left.size_bytes == 0
    assert left_in(carrier) == []
    second.end()


def test_memory_is_left_once_however_often_a_start_is_cut_off(carrier: MemoryCarrier) -> None:
    """A server that is killed between leaving memory and dropping its names counts it once."""
    first = Server(carrier)
    child = attach_child(first)
    first.publish(*first.worker())
    taken = first.arenas.allocated_bytes
    first.end()
    with pytest.MonkeyPatch.context() as killed:
        killed.setattr(carrier, "drop", lambda _: True)
        killed.setattr(carrier, "make", _refuse)
        with pytest.raises(MemoryError):
            Server(carrier, device="another")
    second = Server(carrier, device="another")
    assert second.succession.left.size_bytes == taken
    assert not set(extents_of(carrier)) & set(carrier.held)
    second.end()
    child.kill()
    child.communicate()


def test_left_memory_is_taken_from_the_lowest_tier_first() -> None:
    """Tier 1 serves all requests, and tier 2 only some."""
    carrier = MemoryCarrier()
    succession = Succession(carrier, settings=SETTINGS, journal_bytes=JOURNAL_BYTES)
    source = HostMemory(held=succession.held)
    tiers = [
        Arenas(budget_bytes=8 * PAGE_BYTES, extent_bytes=PAGE_BYTES, source=source, tier=tier)
        for tier in (1, 2)
    ]
    succession._tiers = tiers
    for size, rooms in ((0, [8, 8]), (3, [8, 5]), (11, [5, 0]), (20, [0, 0])):
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(succession.left, "look", lambda size=size: size * PAGE_BYTES)
            assert not succession.count_left()
        assert [each.room(PAGE_BYTES) for each in tiers] == rooms
    assert succession.count_left()
    assert [each.room(PAGE_BYTES) for each in tiers] == [8, 8]


def test_another_setting_is_named(carrier: MemoryCarrier) -> None:
    """Settings that one server has and the other one lacks count too."""
    Server(carrier).end()
    second = Server(carrier, device="cuda:0", tier3_path="/slab")
    why = "these settings changed: device, tier3_path"
    use = second.succession.use()
    assert use is not None
    assert second.log["clean_start"]["why"] == use.clean_start == why
    second.end()


def test_an_error_that_nobody_foresaw_is_a_clean_start(
    carrier: MemoryCarrier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that cannot recover must not fail at each start."""

    def fail(*_: object) -> None:
        raise KeyError("a bug")

    Server(carrier).end()
    monkeypatch.setattr("kvstore.succession.inheritance.recover", fail)
    second = Server(carrier)
    assert second.log["clean_start"]["why"] == "the recovery failed"
    use = second.succession.use()
    assert use is not None
    assert (use.clean_start, use.instance) == ("the recovery failed: KeyError('a bug')", 1)
    second.end()
