"""Pages are read before they are handed out, and slots given back are poisoned."""

import mmap
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from random import Random
from threading import Barrier

import pytest
from structlog.testing import capture_logs
from xxhash import xxh3_64_intdigest

from kvstore.core.values.requests import (
    Caller,
    Identity,
    Match,
    MatchOptions,
    ReservationRequest,
    Sequence,
)
from kvstore.errors import LeaseNotFound
from kvstore.service import matching
from kvstore.service.matching import Sampler
from kvstore.service.periodic_threads import Reaper
from kvstore.storage.arenas import POISON
from kvstore.storage.errors import CudaFailed
from kvstore.storage.extent import HostExport, SlotReader
from stores.store_world import PAGE_BYTES, World, Worlds, sequence_of
from wire.own_logs import own_logs

ADMIN = Identity("uid-0", admin=True)


class Written:
    """A store in which a worker published pages, each with its checksum, through a mapping."""

    def __init__(self, world: World, *, pages: int = 3) -> None:
        self.world = world
        self.caller = world.worker()
        self.namespace_id = world.open_namespace(self.caller)
        self.slots = self.publish(self.caller, pages)

    def publish(self, caller: Caller, pages: int, *, salt: int = 0) -> list[int]:
        """Writes and insert pages; returns their slots."""
        store, number = self.world.store, next(self.world.numbers)
        grants = store.reserve(caller, self.namespace_id, [ReservationRequest(number, 0, pages)])
        slots = [run.extent_id << 32 | i for run in grants[0].runs for i in run.indexes]
        for k, slot in enumerate(slots):
            self.write(slot, 0, bytes([1 + salt + k]) * PAGE_BYTES)
        checksums = [
            xxh3_64_intdigest(bytes([1 + salt + k]) * PAGE_BYTES) for k in range(len(slots))
        ]
        tokens = sequence_of(pages, rest=0, salt=salt)
        store.insert(caller, number, tokens, checksums=checksums)
        store.abort(caller, [number])
        return slots

    def write(self, slot: int, offset: int, content: bytes) -> None:
        """Writes into a slot as a worker does that has mapped its extent."""
        [extent] = self.world.arenas.describe([slot >> 32])
        assert isinstance(extent.export, HostExport)
        with mmap.mmap(extent.export.descriptor, extent.export.size_bytes) as mapping:
            start = (slot & 0xFFFFFFFF) * PAGE_BYTES + offset
            mapping[start : start + len(content)] = content

    def match(self, caller: Caller, pin_id: int = 1, *, pages: int = 3) -> Match:
        """Matches the pages."""
        options = MatchOptions(pin_id)
        return self.world.store.match(caller, self.namespace_id, sequence_of(pages), options)

    def counts(self) -> tuple[int, int]:
        """Returns pages verified, and pages found corrupt."""
        counters = self.world.store.stats(ADMIN).counters
        return counters.verified_page_count, counters.corrupt_page_count


@pytest.mark.parametrize(("rate", "picked"), [(0.0, []), (1.0, [0, 1, 2, 3])])
def test_none_or_all_are_picked(rate: float, picked: list[int]) -> None:
    """Zero looks at nothing, one at everything."""
    assert Sampler(rate).pick(4) == picked
    assert Sampler(rate).pick(0) == []


@pytest.mark.parametrize(("rate", "pages"), [(0.005, 128), (0.3, 5), (0.5, 1), (0.99, 3)])
def test_every_page_is_as_likely_as_every_other(rate: float, pages: int) -> None:
    """On average the rate's part is picked, whatever the length, in order and never twice."""
    sampler = Sampler(rate, Random(7))  # the same each time
    times, picked = 40_000, Counter[int]()
    for _ in range(times):
        numbers = sampler.pick(pages)
        assert numbers == sorted(set(numbers))
        picked.update(numbers)
    assert set(picked) == set(range(pages))
    expected = rate * times
    assert all(abs(count - expected) < 6 * expected**0.5 for count in picked.values())


def test_much_that_follows_leaves_in_parts(worlds: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    """No match finds it from then on. The reaper removes it, and calls get in between."""
    world = worlds(slots=60, extent_slots=60, verify_rate=1.0)
    written = Written(world, pages=1)
    first = sequence_of(1, rest=0).tokens
    for number in range(100, 150):
        world.store.reserve(
            written.caller, written.namespace_id, [ReservationRequest(number, 0, 2)]
        )
        tokens = first + sequence_of(1, rest=0, salt=1000 * number).tokens
        world.store.insert(written.caller, number, Sequence(tokens))
        world.store.abort(written.caller, [number])
    written.write(written.slots[0], 17, b"\0")
    assert written.match(written.caller, pages=1).matched_token_count == 0
    left: list[int] = []

    def meanwhile(_: float) -> None:
        world.check()
        left.append(world.store.stats(ADMIN).namespaces[0].cached_page_count)
        assert written.match(written.caller, 2, pages=1).matched_token_count == 0

    monkeypatch.setattr(matching, "sleep", meanwhile)
    reaper = Reaper(world.store, clock=world.clock, interval=60.0)
    reaper.tick()
    assert reaper.failure_count == 0
    assert left[0] > left[1] > left[2] > left[-1] == 0
    assert written.counts() == (1, 1)
    assert world.store.stats(ADMIN).counters.removed_page_count == 51


def test_a_page_that_somebody_wrote_over_is_not_handed_out(worlds: Worlds) -> None:
    """The match is what is above it; the log says where, and nothing of what was in it."""
    written = Written(worlds(verify_rate=1.0))
    written.write(written.slots[1], 17, b"\0")
    other = written.world.worker()
    written.world.open_namespace(other)
    with capture_logs() as logs:
        match = written.match(other)
    assert match.matched_token_count == 4
    assert written.match(other) == match
    assert written.counts() == (4, 1)
    assert [each for each in logs if each["event"] == "page_corrupt"] == [
        {
            "event": "page_corrupt",
            "log_level": "error",
            "namespace_id": written.namespace_id.hex(),
            "extent_id": written.slots[1] >> 32,
            "slot": written.slots[1] & 0xFFFFFFFF,
            "page_position": 1,
        }
    ]
    written.world.check()


def test_what_is_computed_anew_is_handed_out_again(worlds: Worlds) -> None:
    """A caller that found less inserts the rest, and the next one finds all of it."""
    written = Written(worlds(verify_rate=1.0))
    written.write(written.slots[0], 0, b"\0")
    assert written.match(written.caller) == Match(0, ())
    written.publish(written.caller, 3)
    assert written.match(written.caller, 2).matched_token_count == 12
    assert written.counts() == (6, 1)


def test_an_acquire_is_looked_at_too(worlds: Worlds) -> None:
    """Its reservation begins where the good pages end, and no slot is lost."""
    written = Written(worlds(verify_rate=1.0))
    written.write(written.slots[1], 17, b"\0")
    match, grant = written.world.store.acquire(
        written.caller,
        written.namespace_id,
        sequence_of(4),
        MatchOptions(1),
        reservation_id=99,
        total_page_count=4,
    )
    assert grant is not None
    assert (match.matched_token_count, grant.start_page) == (4, 1)
    written.world.check()
    written.world.store.release(written.caller, [1])
    written.world.store.abort(written.caller, [99])
    [arena] = written.world.store.stats(ADMIN).arenas
    assert {state.name: n for state, n in arena.slots.items() if n} == {"FREE": 3, "CACHED": 1}


def test_at_rate_zero_nothing_is_looked_at(worlds: Worlds) -> None:
    """Pages that are not verified are answered as they are."""
    written = Written(worlds())
    written.write(written.slots[1], 17, b"\0")
    assert written.match(written.caller).matched_token_count == 12
    assert written.counts() == (0, 0)


def test_the_rate_can_change(worlds: Worlds) -> None:
    """The next match is looked at by the new one."""
    written = Written(worlds())
    written.match(written.caller)
    written.world.store.change_verify_rate(1.0)
    written.match(written.caller, 2)
    written.world.store.change_verify_rate(0.0)
    written.match(written.caller, 3)
    assert written.counts() == (3, 0)


def test_pages_without_a_checksum_are_handed_out(worlds: Worlds) -> None:
    """A writer that gives none is believed."""
    written = Written(worlds(verify_rate=1.0))
    request = ReservationRequest(5, 0, 2)
    written.world.store.reserve(written.caller, written.namespace_id, [request])
    tokens = sequence_of(2, rest=0, salt=50)
    written.world.store.insert(written.caller, 5, tokens)
    longer = Sequence(tokens.tokens + bytes(4))
    match = written.world.store.match(written.caller, written.namespace_id, longer, MatchOptions(6))
    assert match.matched_token_count == 8
    assert written.counts() == (0, 0)


def while_reading(
    world: World, monkeypatch: pytest.MonkeyPatch, work: Callable[[], object]
) -> None:
    """Runs ``work`` each time before a page is read."""
    made = world.arenas.reader

    def reader(extent_id: int) -> SlotReader | None:
        read = made(extent_id)
        return None if read is None else lambda index: reading(read, index)

    def reading(read: SlotReader, index: int) -> memoryview | None:
        work()
        return read(index)

    monkeypatch.setattr(world.arenas, "reader", reader)


def test_the_store_goes_on_while_pages_are_read(
    worlds: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing waits for a page that is being read: the mutex is not held."""
    written = Written(worlds(verify_rate=1.0))
    pins: list[int] = []
    while_reading(
        written.world,
        monkeypatch,
        lambda: pins.append(written.world.store.stats(ADMIN).pin_count),
    )
    assert written.match(written.caller).matched_token_count == 12
    assert pins == [1, 1, 1]


def test_two_matches_find_the_same_bad_page_at_once(
    worlds: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both answer what is above it, and it is counted and logged once."""
    written = Written(worlds(verify_rate=1.0))
    written.write(written.slots[2], 0, b"\0")
    other = written.world.worker()
    written.world.open_namespace(other)
    # Three pages each, then two each: nobody reads on before both have read as much.
    barrier = Barrier(2, timeout=30)
    while_reading(written.world, monkeypatch, barrier.wait)
    with capture_logs() as logs, ThreadPoolExecutor(2) as pool:
        matches = list(pool.map(written.match, (written.caller, other)))
    assert [each.matched_token_count for each in matches] == [8, 8]
    assert written.counts() == (10, 1)
    assert sum(each["event"] == "page_corrupt" for each in logs) == 1
    written.world.check()


def test_a_lease_that_ends_meanwhile_gets_no_answer(
    worlds: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its pin is gone, so there is nothing to hand out; the bad page leaves all the same."""
    written = Written(worlds(verify_rate=1.0))
    written.write(written.slots[1], 0, b"\0")
    while_reading(written.world, monkeypatch, lambda: written.world.store.revoke(written.caller))
    with capture_logs() as logs, pytest.raises(LeaseNotFound):
        written.match(written.caller)
    assert sum(each["event"] == "page_corrupt" for each in logs) == 1
    assert written.counts() == (3, 1)
    written.world.check()


def test_a_page_that_cannot_be_read_is_handed_to_nobody(
    worlds: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page that the store's own device refuses to show is a miss, and the log says why."""
    written = Written(worlds(verify_rate=1.0))

    def refuse() -> None:
        raise CudaFailed("memcpy: refused")

    while_reading(written.world, monkeypatch, refuse)
    with own_logs() as logs:
        assert written.match(written.caller) == Match(0, ())
    first = logs[0]
    assert (first["event"], first["why"]) == ("page_unreadable", "memcpy: refused")
    assert {each["event"] for each in logs} == {"page_unreadable", "page_corrupt"}
    assert written.counts() == (3, 3)
    written.world.check()


def test_pages_that_are_always_wrong_fill_no_log(worlds: Worlds) -> None:
    """Wrong checksums cause a few lines, which say how many more there were."""
    written = Written(worlds(verify_rate=1.0))
    with capture_logs() as logs:
        for number in range(1, 41):
            written.write(written.slots[0], 0, b"\0")
            assert written.match(written.caller, number) == Match(0, ())
            written.slots = written.publish(written.caller, 1)
    lines = [each for each in logs if each["event"] == "page_corrupt"]
    assert len(lines) == 10  # the world's clock stands still
    assert written.counts()[1] == 40


@pytest.mark.parametrize("poison", [True, False])
def test_a_late_reader_sees_poison(worlds: Worlds, *, poison: bool) -> None:
    """Slots that were given back are filled at once, where that is asked for, and no others."""
    written = Written(worlds(slots=4, poison=poison))
    store, slots = written.world.store, written.slots
    late = [written.world.arenas.read(each) for each in slots]
    store.reserve(written.caller, written.namespace_id, [ReservationRequest(9, 0, 2)])
    seen = [set(bytes(each)) for each in late if each is not None]
    assert seen == [{1}, {2}, {POISON if poison else 3}]
    store.evict_prefix(ADMIN, written.namespace_id, b"")
    seen = [set(bytes(each)) for each in late if each is not None]
    assert seen == ([{POISON}] * 3 if poison else [{1}, {2}, {3}])
