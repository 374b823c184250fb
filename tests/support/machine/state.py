"""The cache machine's state: cache and model, and what all its rules use."""

from collections import Counter
from collections.abc import Callable, Iterable
from math import inf

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine

from kvstore import errors
from kvstore.core.cache import PrefixCache
from kvstore.core.eviction.policies import POLICIES
from kvstore.core.index.node import Position
from kvstore.core.index.protocol import IndexFactory
from kvstore.core.index.radix import RadixIndex, path_tokens, subtree
from kvstore.core.index.removal import NODE_WORK
from kvstore.core.invariants.check import Invariants
from kvstore.core.pool.copy_changes import CopySweep
from kvstore.core.tiers.disk_reads import DiskRead
from kvstore.core.tiers.disk_writes import DiskWrite
from kvstore.core.tiers.moves import Move
from kvstore.core.values.change_log import ChangeLog
from kvstore.core.values.event_log import EventWatch
from kvstore.core.values.limits import Limits, QuotaTable
from kvstore.core.values.requests import (
    Caller,
    Grant,
    Identity,
    InFlight,
    Match,
    MatchOptions,
    Sequence,
)
from kvstore.core.values.runs import Run
from machine.neighbour import NEIGHBOUR, QUOTAS, Neighbour
from naive.blocks import NaiveBlocks
from naive.copies import FIRST, LOWER, Path, Slot
from naive.holds import Expected, ModelHold, ModelLease, ModelPin, ModelReservation
from naive.model import Model

EPOCH = 11
OWNER = Identity("tenant-a")
ADMIN = Identity("tenant-root", admin=True)
# A sequence is a few pages out of four, then a few tokens that fill no page.
PAGES = st.lists(st.integers(0, 3), max_size=5)
TAILS = st.sampled_from([(1, 0), (1, 3), (7, 3), (8, 3), (9, 3), (15, 0), (15, 3), (0, 0)])
# What is rare in life is rare here, so that pins and pages live long enough to meet.
SELDOM = st.sampled_from([False, False, False, False, True])
COUNTS: Counter[str] = Counter()


def slots_of(runs: Iterable[Run]) -> list[Slot]:
    """Returns the slots of an answer, in order."""
    return [(run.extent_id, index) for run in runs for index in run.indexes]


class MachineState(RuleBasedStateMachine):
    """The cache, the model, and how the rules make things up."""

    page_tokens = 2
    slot_count = 12
    # Few, so that tier 2 has to make room too.
    lower_slot_count = 7
    index: IndexFactory = RadixIndex
    policy = "auto"
    tier_count = 1

    def __init__(self) -> None:
        super().__init__()
        self.now = 100.0
        limits = Limits(min_ttl=1.0, default_ttl=10.0, max_ttl=20.0, max_remembered_events=1 << 16)
        quotas = QuotaTable(by_tenant={NEIGHBOUR.tenant: QUOTAS})
        self.cache = PrefixCache(
            EPOCH,
            limits,
            POLICIES[self.policy],
            quotas=quotas,
            index=type(self).index,
            page_stores=1,
        )
        # Leases with two holds end in parts.
        self.cache.state.holds_at_once = 1
        if self.tier_count == 1:
            # A corrupt page leaves in parts if another node continues it. With two tiers other
            # copies are kept then than if all leave at once, as the model's do.
            self.cache.state.work_at_once = 2 * NODE_WORK
        self.neighbour = Neighbour(self.cache)
        self.core_invariants = Invariants(self.cache)
        self.model = Model(width=self.page_tokens * 4)
        self.next_id = 1
        self.namespace_id = b"n" * 16
        # Every (slot, generation) that was ever granted: none comes twice.
        self.granted: set[tuple[Slot, int]] = set()
        # What the bytes of a slot come to, and the slots that were written over since.
        self.digests: dict[Slot, int] = {}
        self.flipped: set[Slot] = set()
        # Moves between tiers 1 and 2, disk writes and disk reads that are under way.
        self.moves: list[Move] = []
        self.writes: list[DiskWrite] = []
        self.reads: list[DiskRead] = []
        self.just_written: set[bytes] = set()
        self.known_digests: dict[bytes, bytes] = {}
        # Pages by depth, leases and namespaces, as events reported them.
        self.told_pages: Counter[int] = Counter()
        self.told_leases: set[bytes] = set()
        self.told_namespaces: set[bytes] = set()
        self.every_digest: set[bytes] = set()
        self.watch = EventWatch(OWNER, b"", room=3, wake=lambda: None)
        # All changes of blocks, who followed them, and who was given a sweep besides.
        self.blocks = ChangeLog(room_bytes=1 << 30, wake=lambda: None)
        self.cache.events.changes = self.blocks
        self.followed, self.swept = NaiveBlocks(), NaiveBlocks()
        self.sweep: CopySweep | None = None
        self.steps = 0
        self.watched_steps = range(0)

    @property
    def has_tiers(self) -> bool:
        """True if there are two tiers."""
        return len(self.cache.state.tiers) > 1

    def page(self, symbol: int) -> bytes:
        """Returns the tokens of a page: most differ in their last alone, one from its middle on."""
        lead = [7] * (self.page_tokens - 1)
        if symbol == 3 and lead:
            middle = self.page_tokens // 2 - 1
            lead[middle:] = [5] * (len(lead) - middle)
        return b"".join(token.to_bytes(4, "little") for token in [*lead, symbol])

    def tokens(self, pages: list[int], tail: tuple[int, int] = (0, 0)) -> bytes:
        """Returns a sequence of whole pages, and the first tokens of another, less than all."""
        count, symbol = tail
        rest = self.page(symbol)[: 4 * min(count, self.page_tokens - 1)]
        return b"".join(map(self.page, pages)) + rest

    def sequence(
        self, data: st.DataObject, pages: list[int], tail: tuple[int, int] = (0, 0)
    ) -> bytes:
        """Returns pages that continue something cached, or nothing."""
        known = data.draw(st.sampled_from([b"", *sorted(self.model.paths())]))
        return known[: len(known) // self.model.width * self.model.width] + self.tokens(pages, tail)

    def options(self, data: st.DataObject) -> MatchOptions:
        """Draws how a match is asked for."""
        source_id = data.draw(st.sampled_from([None, self.fresh(), self.fresh()]))
        pin_id = self.fresh()
        return MatchOptions(pin_id, source_id, data.draw(st.booleans()), pin_id % 3)

    def check_match(
        self,
        lease: ModelLease,
        expected: Expected,
        asked: tuple[Sequence, MatchOptions],
        match: Match,
        idle: float | None = None,
    ) -> None:
        """Compares a match with what was expected, and note the pins that it took."""
        sequence, options = asked
        assert slots_of(match.runs) == [slot for _, slot in expected.path], "another path"
        assert match.matched_token_count == len(expected.path) * self.page_tokens
        assert match.next_token == expected.next_token, "another next token"
        within = inf if idle is None else idle
        self.check_in_flight(sequence, expected.path, match.in_flight, within)
        if match.source is None:
            assert not expected.sources or expected.may_lack, "no source page"
        else:
            [slot] = slots_of([match.source.page])
            assert slot in expected.sources, "another source page"
            assert match.source.valid_token_count == expected.valid
            assert match.source.pin_id == options.source_pin_id
            page = (expected.sources[slot], slot)
            lease.sources[match.source.pin_id] = ModelHold([*expected.path, page])
        if expected.path or match.source is not None:
            told = match._replace(in_flight=None)
            lease.pins[options.pin_id] = ModelPin(expected.path, sequence, options, told)

    def check_in_flight(
        self, sequence: Sequence, path: Path, found: InFlight | None, idle: float = inf
    ) -> None:
        """Compares what is said to be computed after a matched path with what leases announced."""
        above = sequence.position // self.page_tokens
        depth, end, ages = len(path), 0, set[float]()
        if above <= depth:
            begin = path[above - 1][0] if above else b""
            end, ages = self.model.in_flight(begin + sequence.tokens, depth, self.now, idle)
        COUNTS["in flight"] += found is not None
        if found is None:
            assert not ages, "nobody was told of what is computed"
        else:
            assert found.token_count == end * self.page_tokens, "told of something else"
            assert found.inserted_token_count == depth * self.page_tokens
            assert found.idle in ages

    def fresh(self) -> int:
        """Returns an id that was never used."""
        self.next_id += 1
        return self.next_id

    def caller(self, lease: ModelLease) -> Caller:
        """Returns the lease's owner as a caller."""
        return Caller(OWNER, lease.lease_id, lease.secret, EPOCH)

    def lease(self, data: st.DataObject) -> ModelLease:
        """Draws a lease that has not ended."""
        return self.model.leases[data.draw(st.sampled_from(sorted(self.model.leases)))]

    def member(self, data: st.DataObject) -> ModelLease | None:
        """Draws a lease that may take part; of another, check that it is refused."""
        lease = self.lease(data)
        if not lease.expired and lease.processes:
            return lease
        error = errors.LeaseExpired if lease.expired else errors.NotAttached
        sequence = Sequence(self.tokens([0, 0]))
        self.refused(error, self.cache.match, lease, self.namespace_id, sequence, MatchOptions(1))
        return None

    def reservation(self, data: st.DataObject) -> tuple[ModelLease, int, ModelReservation]:
        """Draws a reservation."""
        lease = data.draw(
            st.sampled_from([each for each in self.model.leases.values() if each.reservations])
        )
        reservation_id = data.draw(st.sampled_from(sorted(lease.reservations)))
        return lease, reservation_id, lease.reservations[reservation_id]

    def refused(
        self, error: type[Exception], verb: Callable[..., object], lease: ModelLease, *args: object
    ) -> None:
        """Checks that a verb raises ``error``; that it changed nothing, the invariants check."""
        try:
            verb(self.caller(lease), *args, now=self.now)
        except error:
            return
        raise AssertionError(f"{verb.__name__} was not refused with {error.__name__}")

    def cached_now(self, tier: int = FIRST) -> dict[bytes, Slot]:
        """Reads the index: every prefix with a copy in a tier, and its slot."""
        index = self.cache.namespaces[self.namespace_id].index
        found: dict[bytes, Slot] = {}
        above: dict[int, bytes] = {0: b""}
        for node in subtree(index.root):
            base = above[node.parent.number] if node.parent else b""
            for copies in node.leaves():
                if copies.tier != tier:
                    continue
                for k, slot in enumerate(copies.copied()):
                    found[base + node.edge[: (k + 1) * index.width]] = (
                        slot >> 32,
                        slot & 0xFFFFFFFF,
                    )
            above[node.number] = base + node.edge
        return found

    def take_part(self) -> None:
        """Takes the pages that the cache removed in one part, perhaps none, out of the model.

        The model follows part by part: of a page above a part that went, a hold keeps only the
        copy in the tier that it was handed.
        """
        left = self.cached_now(FIRST).keys() | self.cached_now(LOWER).keys()
        gone = self.model.cached.keys() - left
        below = {each for each in left if any(each.startswith(page) for page in gone)}
        assert not below, "a page was removed and its continuation was not"
        self.model.remove_pages(gone)

    def ends_now(self) -> dict[bytes, int]:
        """Reads the index: every end and its next token."""
        index = self.cache.namespaces[self.namespace_id].index
        found: dict[bytes, int] = {}
        for node in subtree(index.root):
            base = path_tokens(Position(node, 0), index.width)
            for depth, tail in node.next_tokens or ():
                tokens = base + node.edge[: (depth - node.start) * index.width] + tail
                token = node.next_tokens.find(depth, tail) if node.next_tokens else None
                assert token is not None
                found[tokens] = token
        return found

    def forecast(self, lease: ModelLease, count: int) -> tuple[bool, int]:
        """Returns whether ``count`` slots can be had, and how many pages must go for them."""
        free = self.model.free_slots()
        lasting = self.model.lasting_in(FIRST)
        usable = lease.usable(lasting)
        if len(usable) < len(lasting):
            return count <= sum(slot[0] in usable for slot in free), 0
        evictable = len(set(self.model.first) - self.model.held(FIRST))
        return count <= len(free) + evictable, max(count - len(free), 0)

    def take_grant(self, lease: ModelLease, grant: Grant) -> None:
        """Notes a grant: what is new of it was free, is mapped, and has a new generation."""
        reservation_id, start = grant.reservation_id, grant.start_page
        slots = slots_of(grant.runs)
        known = lease.reservations.get(reservation_id)
        if known is None:
            known = ModelReservation(start, [], [])
        assert known.start == start
        there = [k for k in range(len(known.slots)) if k not in known.moved]
        kept = [known.slots[k] for k in there]
        assert [slots[k] for k in there] == kept, "granted slots changed"
        places = [k for k in range(len(slots)) if k >= len(known.slots) or k in known.moved]
        fresh = [slots[k] for k in places]
        assert set(fresh) <= self.model.free_slots(), "a slot in use was granted"
        assert {slot[0] for slot in fresh} <= lease.usable(self.model.lasting)
        generations = [each for run in grant.runs for each in run.generations]
        granted = {(slots[k], generations[k]) for k in places}
        assert not granted & self.granted, "a slot came back under its old generation"
        self.granted |= granted
        known.slots = slots
        known.own = [k in places or known.own[k] for k in range(len(slots))]
        known.moved.clear()
        lease.reservations[reservation_id] = known
