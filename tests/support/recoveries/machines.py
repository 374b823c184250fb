"""Cache machines whose cache has a journal, recovered from every write."""

from hypothesis.stateful import initialize

from kvstore.core.cache import PrefixCache
from kvstore.core.eviction.policies import POLICIES
from kvstore.core.pool.tier_policy import TierPolicy, WantedMoves
from machine import cache_machine
from machine.moves import POLICIES as TIER_POLICIES
from machine.state import COUNTS, EPOCH
from recoveries.cleaned_memory import CleanedMemory
from recoveries.list_memory import ListMemory
from recoveries.witness import Witness


class Journaled(cache_machine.CacheMachine):
    """The cache machine with a journal. Every call is witnessed."""

    memory: type[ListMemory] = ListMemory
    has_head_starts = False

    def __init__(self) -> None:
        super().__init__()
        self.tier_policy: TierPolicy | None = None
        self.witness = Witness(
            self.cache, self.make, type(self).memory(), has_head_starts=self.has_head_starts
        )

    def teardown(self) -> None:
        """Counts the recoveries."""
        COUNTS["recoveries"] += self.witness.recoveries
        COUNTS.update(self.witness.ahead)

    def make(self) -> PrefixCache:
        """Returns an empty cache like the machine's."""
        made = PrefixCache(
            EPOCH,
            self.cache.limits,
            POLICIES[self.policy],
            quotas=self.cache.state.quotas,
            index=type(self).index,
            page_stores=1,
        )
        if self.tier_policy is not None:
            made.state.wanted = WantedMoves(self.tier_policy)
        return made

    @initialize(policy=TIER_POLICIES)
    def begin(self, policy: TierPolicy) -> None:
        """Begins as the cache machine does, and knows the policy of the tiers."""
        if self.tier_count > 1:
            self.tier_policy = policy
        cache_machine.CacheMachine.begin(self, policy)


class JournaledGroups(Journaled, cache_machine.GroupedPages):
    """Pages of KV cache groups too."""


class JournaledTiers(Journaled, cache_machine.TwoTiers):
    """Pages in two tiers."""


class JournaledGroupsInTiers(Journaled, cache_machine.GroupedPagesInTwoTiers):
    """Pages of KV cache groups in two tiers."""


class JournaledHashes(Journaled, cache_machine.HashedPages):
    """Pages found by their digests."""


class JournaledRuns(Journaled, cache_machine.PagesInRuns):
    """Pages that are read in runs."""


class Cleaned(Journaled):
    """A journal in real memory, which is cleaned at each write."""

    memory = CleanedMemory


class CleanedGroups(JournaledGroups):
    """The same, with pages of KV cache groups."""

    memory = CleanedMemory


class CleanedTiers(JournaledTiers):
    """The same, with pages in two tiers."""

    memory = CleanedMemory


class CleanedGroupsInTiers(JournaledGroupsInTiers):
    """The same, with pages of KV cache groups in two tiers."""

    memory = CleanedMemory


class Ahead(Journaled):
    """Each recovery has another one beside it that began before."""

    has_head_starts = True


class AheadGroups(JournaledGroups):
    """The same, with pages of KV cache groups."""

    has_head_starts = True


class AheadHashes(JournaledHashes):
    """The same, with pages found by their digests."""

    has_head_starts = True


class AheadCleaned(Cleaned):
    """The same, with a journal that is cleaned at each write."""

    has_head_starts = True


class AheadCleanedGroups(CleanedGroups):
    """The same, with pages of KV cache groups."""

    has_head_starts = True
