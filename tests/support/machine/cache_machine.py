"""A hypothesis state machine: the cache beside the naive model, step by step.

After every step every law of ``kvstore.core.invariants`` is checked, the index
is compared with the model's dictionary, and the bytes behind every held slot
are compared with what its page was written as.
"""

from functools import partial

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from kvstore import errors
from kvstore.core.index.hash_index import HashIndex, blake2b_128
from kvstore.core.pool.tier_policy import TierPolicy, WantedMoves
from kvstore.core.values.layout import NamespaceIdentity, OpaqueContent, PageLayout
from kvstore.core.values.requests import Caller, Identity, MatchOptions, Sequence
from machine.deleting import DeleteRules
from machine.events import EventRules
from machine.loading import LoadRules
from machine.matching import MatchRules
from machine.members import MemberRules
from machine.moving import POLICIES
from machine.named_pins import NamedPinRules
from machine.prefills import PrefillRules
from machine.state import COUNTS, EPOCH, OWNER, TAILS
from machine.tenants import TenantRules
from machine.verifying import VerifyRules
from naive.copies import FIRST, LOWER


class CacheMachine(
    EventRules,
    LoadRules,
    MemberRules,
    MatchRules,
    VerifyRules,
    PrefillRules,
    NamedPinRules,
    TenantRules,
    DeleteRules,
):
    """All verbs of the cache by several leases, in any order."""

    @initialize(policy=POLICIES)
    def begin(self, policy: TierPolicy) -> None:
        """Starts with one lease, its process, a namespace and an extent a tier."""
        if self.tier_count > 1:
            self.cache.state.wanted = WantedMoves(policy)
        lease = self.grant_one()
        self.attach_one(lease)
        content = OpaqueContent(b"layout", divides_by_token=True)
        self.cache.open_namespace(
            self.caller(lease),
            NamespaceIdentity(b"model"),
            PageLayout(self.page_tokens, 64, 1, content),
            self.namespace_id,
            self.now,
        )
        for tier in self.cache.state.tiers:
            self.add_extent(tier)
        self.acknowledge_all(lease)
        self.open_and_map(self.grant_one())
        self.neighbour.arrive(lease.lease_id, self.fresh(), self.now)
        for pages, tail in (([0, 1, 2], 0), ([0, 1, 0], 0), ([1, 1], 0), ([0, 1], 1), ([1, 1], 8)):
            self.acquire_one(lease, self.tokens(pages, (tail, 3)), 0)

    @rule(data=st.data(), tail=TAILS, everything=st.sampled_from([False] * 9 + [True]))
    def evict_prefix(self, data: st.DataObject, tail: tuple[int, int], *, everything: bool) -> None:
        """An operator removes a prefix: what is held of it is detached, the rest goes.

        Everything, perhaps, and the namespace with it.
        """
        COUNTS["evict_prefix"] += 1
        if everything and self.model.leases and data.draw(st.booleans()):
            opener = self.member(data)
            if opener is not None:
                self.delete_namespace(opener)
            return
        tokens = b"" if everything else self.sequence(data, [], tail)
        if not tokens and not everything:
            tokens = self.tokens([0])
        held_before = self.model.held_by_leases()
        gone = self.model.remove(tokens)
        self.model.disk.forbid(tokens)
        removed = self.cache.evict_prefix(OWNER, self.namespace_id, tokens)
        assert removed.evicted_page_count + removed.detached_page_count == gone
        kept = sum(prefix not in self.model.cached for prefix in held_before)
        assert removed.detached_page_count == kept

    @precondition(lambda self: self.model.leases)
    @rule(data=st.data())
    def speak_wrongly(self, data: st.DataObject) -> None:
        """Another epoch, secret or tenant changes nothing, nor a match after its release."""
        COUNTS["speak_wrongly"] += 1
        lease = self.lease(data)
        if lease.processes and not lease.expired:
            pin_id = self.fresh()
            self.cache.release(self.caller(lease), [pin_id], self.now)
            late = Sequence(self.tokens([0, 0]))
            self.refused(
                errors.Tombstoned,
                self.cache.match,
                lease,
                self.namespace_id,
                late,
                MatchOptions(pin_id),
            )
        for caller, error in (
            (Caller(OWNER, lease.lease_id, lease.secret, EPOCH + 1), errors.StaleEpoch),
            (Caller(OWNER, lease.lease_id, b"guess", EPOCH), errors.LeaseNotFound),
            (Caller(Identity("b"), lease.lease_id, lease.secret, EPOCH), errors.LeaseNotFound),
        ):
            try:
                self.cache.release(caller, list(lease.pins), self.now)
            except error:
                continue
            raise AssertionError(f"{error.__name__} was not raised")

    # What holds after every step.

    @invariant()
    def laws_hold(self) -> None:
        """Every law of the core holds."""
        self.laws.check()

    @invariant()
    def index_is_the_model(self) -> None:
        """The index has the model's prefixes and slots, and the arena its free slots."""
        if self.model.extents:
            for tier in (FIRST, LOWER):
                now = self.cached_now(tier)
                assert now == self.model.in_tier(tier), "the index is not the model's"
            assert self.ends_now() == self.model.ends, "next tokens are not the model's"
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
