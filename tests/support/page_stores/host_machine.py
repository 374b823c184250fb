"""A hypothesis state machine: two hosts over one page store, each of which removes pages.

Each page has a birth, which is in its bytes. What a host removed is born before that, and must
never be matched again on this host, nor on the other one once it heard of the removal, nor be read
from the page store by anyone.
"""

from collections import Counter
from typing import NamedTuple

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from xxhash import xxh3_64_intdigest

from kvstore.core.values.requests import MatchOptions, ReservationRequest, Sequence
from kvstore.errors import PoolExhausted
from kvstore.service.page_io.slow_tier import SlowTier
from kvstore.storage.page_store import SharedPageStore
from kvstore.storage.write_admission import FirstTouch
from page_stores.memory_page_store import Medium, MemoryPageStore
from page_stores.shared_page_store import HostMemory, HostPageStore, SharedMedium
from page_stores.tier_machine import PATHS, QUEUE_BYTES, SOON, Path_, prefixes_of, tokens_of
from stores.store_world import PAGE_BYTES, PAGE_TOKENS, ManualClock, make_world

SLOTS = 8
LIMIT = 5.0
COUNTS: Counter[str] = Counter()
HOSTS = st.integers(0, 1)


class Birth(NamedTuple):
    """The first insertion of a page: its path, its host, and when it was."""

    path: Path_
    host: int
    at: int


class Removal(NamedTuple):
    """A removal of a prefix: its host, when it was, and a revision since it.

    The latter is None until the shared page store heard of it.
    """

    prefix: Path_
    host: int
    at: int
    revision: int | None


class Host:
    """A store with a disk of its own or without, over the page store that both hosts share."""

    def __init__(self, number: int, shared: SharedMedium, *, has_disk: bool) -> None:
        self.number = number
        self.has_disk = has_disk
        self.shared = shared
        self.memory = HostMemory()
        self.disk = Medium()
        self.ids = iter(range(1, 1 << 30))
        self.start()

    def start(self) -> None:
        """Starts a store over the pages of before."""
        self.far = self.open_far()
        admission = FirstTouch()
        self.tiers = [SlowTier(self.far, number=int(self.has_disk), admission=admission)]
        near = None
        if self.has_disk:
            store = MemoryPageStore(self.disk, clock=self.now, queue_bytes=QUEUE_BYTES)
            near = SlowTier(store, admission=admission)
            self.tiers.insert(0, near)
        self.world = make_world(
            slots=SLOTS,
            extent_slots=SLOTS,
            slow_tier=near,
            remote_tier=self.tiers[-1],
            clock=self.clock,
        )
        self.caller = self.world.worker()
        self.namespace_id = self.world.open_namespace(self.caller)
        self.digest = self.world.cache.namespaces[self.namespace_id].digest
        self.grow()

    def now(self) -> float:
        """Returns the time of the store, which begins after its page stores."""
        return self.world.clock()

    # The page store that the hosts share.

    clock: ManualClock | None = None

    def open_far(self) -> SharedPageStore:
        """Returns the page store of this host over what the hosts share."""
        return HostPageStore(self.shared, self.memory, clock=self.now, queue_bytes=QUEUE_BYTES)

    @property
    def own_far(self) -> HostPageStore:
        """The page store in memory."""
        assert isinstance(self.far, HostPageStore)
        return self.far

    @property
    def seen(self) -> int:
        """The latest revision that it heard of."""
        return self.own_far.seen(self.digest)

    @property
    def revision(self) -> int:
        """The latest revision that the page store has."""
        return self.shared.revision(self.digest)

    @property
    def owes(self) -> bool:
        """True while the page store has not heard of a removal."""
        return self.digest in self.memory.owed

    @property
    def waiting_count(self) -> int:
        """The calls that wait, and can be carried out in any order."""
        return len(self.own_far.memory.waiting)

    @property
    def waits(self) -> bool:
        """True while calls may wait."""
        return self.own_far.memory.held or bool(self.waiting_count)

    def hold(self) -> None:
        """Makes calls wait."""
        self.own_far.memory.held = True

    def let_go(self) -> None:
        """Carries out what waits."""
        self.own_far.memory.let_go()

    def carry_out(self, number: int) -> None:
        """Carries out one of the calls that wait."""
        self.own_far.memory.carry_out(number)

    def go_away(self) -> None:
        """Cuts this host off."""
        self.own_far.memory.go_away()

    def come_back(self) -> None:
        """Connects it again."""
        self.own_far.come_back()

    # The store.

    def grow(self) -> None:
        """Lets memory grow, and maps it."""
        for growth in self.world.store.growths:
            growth.step()
        self.world.map_extents(self.caller)

    def check(self) -> None:
        """Checks the core, which threads of the page stores change too."""
        self.world.check()

    def stop(self) -> None:
        """Ends the store, as a server does."""
        for each in self.tiers:
            each.close()
        self.world.close()

    def keep(self) -> None:
        """Writes to each page store what was touched."""
        for keeper in self.world.store.tier3.keepers:
            keeper.step()

    def finish_writes(self) -> None:
        """Waits until the shared page store has what was written to it. It has at once."""

    def insert(self, path: Path_, contents: list[bytes]) -> bool:
        """Publishes a path, if there are slots."""
        store, reservation_id = self.world.store, next(self.ids)
        request = ReservationRequest(reservation_id, 0, len(path))
        try:
            [grant] = store.reserve(self.caller, self.namespace_id, [request])
        except PoolExhausted:
            return False
        slots = [run.extent_id << 32 | index for run in grant.runs for index in run.indexes]
        rows = zip(slots, map(memoryview, contents), strict=True)
        assert self.world.arenas.write_all(rows) == [None] * len(path)
        sums = [xxh3_64_intdigest(each) for each in contents]
        store.insert(self.caller, reservation_id, Sequence(tokens_of(path)), checksums=sums)
        store.abort(self.caller, [reservation_id])
        return True

    def listen(self) -> None:
        """Applies what it heard of in earlier calls."""

    def match(self, path: Path_) -> tuple[list[bytes], int]:
        """Matches a path. Returns the bytes of its pages, and the first that was not in memory."""
        store, pin_id = self.world.store, next(self.ids)
        asked = Sequence(tokens_of(path) + bytes(4))
        seconds = SOON if self.waits else LIMIT
        found = store.match(self.caller, self.namespace_id, asked, MatchOptions(pin_id), seconds)
        slots = [run.extent_id << 32 | index for run in found.runs for index in run.indexes]
        contents = [self.world.arenas.read(slot) for slot in slots]
        store.release(self.caller, [pin_id])
        tokens = found.matched_token_count - found.tier_3_loaded_token_count
        return [bytes(each) for each in contents if each is not None], tokens // PAGE_TOKENS

    def evict(self, count: int) -> None:
        """Takes slots for a moment, so that cached pages leave memory."""
        store, reservation_id = self.world.store, next(self.ids)
        request = ReservationRequest(reservation_id, 0, count)
        try:
            store.reserve(self.caller, self.namespace_id, [request])
        except PoolExhausted:
            return
        store.abort(self.caller, [reservation_id])

    def remove(self, prefix: Path_) -> None:
        """Removes a prefix, or all."""
        tokens = tokens_of(prefix)
        self.world.store.evict_prefix(self.caller.identity, self.namespace_id, tokens)


class HostMachine(RuleBasedStateMachine):
    """Workers and operators on two hosts, the second of which has a disk. Both restart."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        # An operator waits for no page store that is away.
        self.patch.setattr("kvstore.service.page_io.slow_tier.REMOVAL_PATIENCE", 0.0)
        self.hosts = self.make_hosts()
        self.births: list[Birth] = []
        self.removals: list[Removal] = []
        self.time = 0

    def make_hosts(self) -> list[Host]:
        """Returns the hosts, the second of which has a disk."""
        shared = SharedMedium()
        return [Host(number, shared, has_disk=bool(number)) for number in (0, 1)]

    def teardown(self) -> None:
        """Ends both hosts."""
        for each in self.hosts:
            each.come_back()
            each.let_go()
            each.keep()
            each.check()
            assert not each.world.cache.disk_reads
            each.stop()
        self.patch.undo()

    @initialize()
    def begin(self) -> None:
        """Both hosts have a path that the first one computed."""
        self.write(0, (0, 1, 2), is_kept=True)
        self.hosts[0].finish_writes()
        self.match(1, (0, 1, 2))
        self.write(1, (0, 1, 0), is_kept=True)

    @rule(number=HOSTS, path=PATHS, is_kept=st.booleans())
    def write(self, number: int, path: Path_, *, is_kept: bool) -> None:
        """Computes a path on a host, and perhaps runs its keepers."""
        self.time += 1
        born = [Birth(each, number, self.time) for each in prefixes_of(path)]
        first = len(self.births)
        contents = [(first + count).to_bytes(8) * (PAGE_BYTES // 8) for count in range(len(born))]
        if self.hosts[number].insert(path, contents):
            self.births += born
            COUNTS["pages inserted"] += len(path)
        if is_kept:
            self.keep(number)

    @rule(number=HOSTS, path=PATHS)
    def match(self, number: int, path: Path_) -> None:
        """Matches a path: each page is its own, and none was removed for this host."""
        host = self.hosts[number]
        host.listen()
        # A removal that it hears of during the match may come after its answer.
        seen = host.seen
        contents, in_memory = host.match(path)
        for content, prefix in zip(contents, prefixes_of(path), strict=False):
            birth = self.births[int.from_bytes(content[:8])]
            assert content == content[:8] * (PAGE_BYTES // 8), "a torn page is served"
            assert birth.path == prefix, "a wrong page is served"
            COUNTS["pages matched"] += 1
            COUNTS["pages matched of the other host"] += birth.host != number
            # The host without a disk has it from the other page store just now.
            is_fresh = not host.has_disk and len(prefix) > in_memory
            for each in self.removals:
                is_of_it = prefix[: len(each.prefix)] == each.prefix and birth.at < each.at
                known = each.revision is not None and seen >= each.revision
                known = known or (is_fresh and each.revision is not None)
                heard = known or number == each.host
                assert not (is_of_it and heard), "a removed page returned"

    @rule(number=HOSTS, path=PATHS)
    def match_after_eviction(self, number: int, path: Path_) -> None:
        """Matches a path that memory does not have any more."""
        self.evict(number, SLOTS)
        self.match(number, path)

    @rule(number=HOSTS)
    def keep(self, number: int) -> None:
        """Runs the keepers of a host once."""
        self.hosts[number].keep()

    @rule(number=HOSTS, count=st.sampled_from([1, 3, SLOTS]))
    def evict(self, number: int, count: int) -> None:
        """Takes slots for a moment."""
        self.hosts[number].evict(count)

    @rule(number=HOSTS, path=PATHS, length=st.integers(0, 2))
    def remove(self, number: int, path: Path_, length: int) -> None:
        """Removes a prefix on a host. While it is away, the other one hears of it later."""
        host, prefix = self.hosts[number], path[:length]
        self.time += 1
        host.remove(prefix)
        self.removals.append(Removal(prefix, number, self.time, None))
        self.hear()
        COUNTS["removals"] += self.removals[-1].revision is not None

    @rule(path=PATHS, number=HOSTS)
    def remove_between_hosts(self, path: Path_, number: int) -> None:
        """Removes on one host what both have, touches it on the other, and asks the first."""
        other = 1 - number
        self.write(number, path, is_kept=True)
        self.match(other, path)
        self.remove(number, path, len(path))
        self.match(other, path)
        self.keep(other)
        self.match_after_eviction(number, path)

    @rule(number=HOSTS)
    def restart(self, number: int) -> None:
        """Ends a host's store, and starts the next one."""
        self.hosts[number].stop()
        self.hosts[number].start()

    @rule(number=HOSTS)
    def hold(self, number: int) -> None:
        """Makes calls of a host to the shared page store wait."""
        self.hosts[number].hold()

    @rule(number=HOSTS)
    def let_go(self, number: int) -> None:
        """Carries out what waits."""
        self.hosts[number].let_go()

    @precondition(lambda self: any(each.waiting_count for each in self.hosts))
    @rule(data=st.data())
    def carry_out(self, data: st.DataObject) -> None:
        """Carries out any one call that waits."""
        host = next(each for each in self.hosts if each.waiting_count)
        host.carry_out(data.draw(st.integers(0, host.waiting_count - 1)))

    @rule(number=HOSTS)
    def go_away(self, number: int) -> None:
        """Cuts a host off from the shared page store."""
        self.hosts[number].go_away()

    @rule(number=HOSTS)
    def come_back(self, number: int) -> None:
        """Connects it again."""
        self.hosts[number].come_back()

    @rule(number=HOSTS, seconds=st.sampled_from([1.0, 61.0]))
    def forget(self, number: int, seconds: float) -> None:
        """Lets time pass, in which a host forgets what the other page store has."""
        self.hosts[number].world.clock.now += seconds
        self.hosts[number].world.store.tier3.silent_losses.step()

    @invariant()
    def hear(self) -> None:
        """Notes the revisions of removals that the shared page store has heard of."""
        for place, each in enumerate(self.removals):
            host = self.hosts[each.host]
            if each.revision is None and not host.owes:
                self.removals[place] = each._replace(revision=host.revision)

    @invariant()
    def invariants_hold(self) -> None:
        """Both cores are whole."""
        for each in self.hosts:
            each.grow()
            each.check()
