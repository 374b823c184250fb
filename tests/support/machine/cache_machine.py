"""A hypothesis state machine: the cache beside the naive model, step by step.

After every step it checks all invariants of ``kvstore.core.invariants``, compares the index with
the model's dictionaries, and compares the bytes in every held slot with what was written there.
"""

from functools import partial

from hypothesis.stateful import initialize, invariant

from kvstore.core.index.hash_index import HashIndex, blake2b_128
from kvstore.core.index.radix import RadixIndex
from kvstore.core.pool.tier_policy import TierPolicy, WantedMoves
from kvstore.core.values.layout import NamespaceIdentity, OpaqueContent, PageLayout
from machine import (
    blocks,
    disk_reads,
    disk_runs,
    disk_writes,
    events,
    extents,
    group_pages,
    inserts,
    leases,
    matches,
    moves,
    named_pins,
    namespaces,
    prefills,
    reservations,
    tenants,
    verification,
)
from machine.state import MachineState
from naive.copies import FIRST, LOWER


class CacheMachine(MachineState):
    """All verbs of the cache by several leases, in any order.

    Each rule is a function over the machine's state, in the module of what it is about.
    Hypothesis orders rules by their names, so a renamed rule changes what a seed finds.
    """

    # Leases and their processes.
    grant = leases.grant
    map_memory = leases.map_memory
    advance = leases.advance
    leave = leases.leave
    speak_from_the_grave = leases.speak_from_the_grave
    speak_wrongly = leases.speak_wrongly
    # Another tenant.
    neighbour_arrives = tenants.neighbour_arrives
    neighbour_acts = tenants.neighbour_acts
    # Memory.
    retire_extent = extents.retire_extent
    destroy_extents = extents.destroy_extents
    die_after_its_lease = extents.die_after_its_lease
    # The request path.
    match = matches.match
    match_from_a_pin = matches.match_from_a_pin
    repeat_a_match = matches.repeat_a_match
    release = matches.release
    release_a_source = matches.release_a_source
    reserve = reservations.reserve
    reserve_more = reservations.reserve_more
    acquire = reservations.acquire
    go_on_in_a_partial_page = reservations.go_on_in_a_partial_page
    come_back_from_another = reservations.come_back_from_another
    abort = reservations.abort
    insert = inserts.insert
    store_next_token = inserts.store_next_token
    insert_badly = inserts.insert_badly
    compute = prefills.compute
    get_on = prefills.get_on
    write_over_a_page = verification.write_over_a_page
    verify_a_match = verification.verify_a_match
    # Namespaces, and named pins in them.
    evict_prefix = namespaces.evict_prefix
    pin_prefix = named_pins.pin_prefix
    unpin_prefix = named_pins.unpin_prefix
    expire_named_pins = named_pins.expire_named_pins
    named_pins_are_the_models = named_pins.named_pins_are_the_models
    # Other tiers.
    plan_moves = moves.plan_moves
    promote_for_a_match = moves.promote_for_a_match
    read_in_place = moves.read_in_place
    finish_moves = moves.finish_moves
    tiers_hold_together = moves.tiers_hold_together
    begin_with_a_disk = disk_writes.begin_with_a_disk
    keep_what_was_touched = disk_writes.keep_what_was_touched
    finish_writes = disk_writes.finish_writes
    lose_a_page = disk_writes.lose_a_page
    what_is_kept_is_on_the_disk = disk_writes.what_is_kept_is_on_the_disk
    load = disk_reads.load
    offer_what_is_not_there = disk_reads.offer_what_is_not_there
    finish_loads = disk_reads.finish_loads
    # Events.
    watch_for_a_while = events.watch_for_a_while
    what_was_told_is_what_is_there = events.what_was_told_is_what_is_there
    blocks_are_what_is_there = blocks.blocks_are_what_is_there

    @initialize(policy=moves.POLICIES)
    def begin(self, policy: TierPolicy) -> None:
        """Starts with one lease, its process, a namespace and an extent a tier."""
        if self.tier_count > 1:
            self.cache.state.wanted = WantedMoves(policy)
        lease = leases.grant_one(self)
        leases.attach_one(self, lease)
        content = OpaqueContent(b"layout", divides_by_token=True)
        self.cache.open_namespace(
            self.caller(lease),
            NamespaceIdentity(b"model"),
            PageLayout(self.page_tokens, 64, 1, content),
            self.namespace_id,
            self.now,
        )
        for tier in self.cache.state.tiers:
            leases.add_extent(self, tier)
        leases.acknowledge_all(self, lease)
        leases.open_and_map(self, leases.grant_one(self))
        self.neighbour.arrive(lease.lease_id, self.fresh(), self.now)
        for pages, tail in (([0, 1, 2], 0), ([0, 1, 0], 0), ([1, 1], 0), ([0, 1], 1), ([1, 1], 8)):
            reservations.acquire_one(self, lease, self.tokens(pages, (tail, 3)), 0)

    @invariant()
    def laws_hold(self) -> None:
        """Every law of the core holds."""
        self.core_invariants.check()

    @invariant()
    def index_is_the_model(self) -> None:
        """The index has the model's prefixes and slots, and the arena its free slots."""
        if self.model.extents:
            for tier in (FIRST, LOWER):
                now = self.cached_now(tier)
                assert now == self.model.in_tier(tier), "the index is not the model's"
            assert self.ends_now() == self.model.next_tokens, "next tokens are not the model's"
            assert self.cache.counters.superseded_page_count == self.model.superseded
            for tier in self.cache.state.tiers:
                free = self.cache.arenas[tier].free_count
                assert free == len(self.model.free_slots(tier)), "slots leaked or given twice"

    @invariant()
    def held_pages_keep_their_bytes(self) -> None:
        """Behind every cached or held slot are the bytes that were written for its page."""
        for prefix, slot in [*self.model.first.items(), *self.model.lower.items()]:
            assert self.model.memory[slot] == prefix, "a cached page was written over"
        for lease in self.model.leases.values():
            for path in lease.holds():
                for prefix, slot in path:
                    assert self.model.memory[slot] == prefix, "a held page was written over"


class JumpingIndex(RadixIndex):
    """A radix index whose walks leave jumps after three nodes."""

    jump_nodes = 1


class GroupedPages(CacheMachine):
    """Pages of KV cache groups too."""

    policy = "auto"
    index = JumpingIndex
    slot_count = 16
    insert_from_spare = group_pages.insert_from_spare
    match_groups = group_pages.match_groups
    evict_a_group_page = group_pages.evict_a_group_page
    name_a_group_page_as_tokens = group_pages.name_a_group_page_as_tokens


class HashedGroupedPages(GroupedPages):
    """Pages of KV cache groups, found by their digests."""

    index = HashIndex


class GroupedPagesInTwoTiers(GroupedPages):
    """Pages of KV cache groups in two tiers."""

    policy = "lru"
    tier_count = 2
    promote_windows = group_pages.promote_windows


class TwoTiers(CacheMachine):
    """Pages in two tiers, of two tokens."""

    policy = "lfu"
    tier_count = 2


class OneTokenPages(CacheMachine):
    """Pages of one token."""

    policy = "lru"
    page_tokens = 1


class HashedPages(CacheMachine):
    """Pages of two tokens, found by their digests, of which there are so few that many collide."""

    policy = "gdsf"
    index = partial(HashIndex, digest=lambda content: bytes([blake2b_128(content)[0] % 8]))


class TwoTiersOfHashedPages(HashedPages):
    """Pages in two tiers, found by their digests."""

    policy = "slru"
    tier_count = 2


class SixteenTokenPages(CacheMachine):
    """Pages of sixteen tokens, which differ in their last alone."""

    policy = "level"
    page_tokens = 16


class PagesInRuns(CacheMachine):
    """Pages that are read in runs, of one tier."""

    policy = "lru"
    load_in_runs = disk_runs.load_in_runs
    go_on_in_runs = disk_runs.go_on_in_runs


class PagesInRunsOfTwoTiers(PagesInRuns):
    """Pages that are read in runs, above a tier 2."""

    policy = "auto"
    tier_count = 2
