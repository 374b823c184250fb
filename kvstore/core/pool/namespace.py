"""A namespace: who shares, how pages are laid out, and their index."""

from collections import ChainMap
from collections.abc import Mapping
from functools import cached_property

from kvstore.core.eviction.policy import EvictionPolicy
from kvstore.core.index.node import Node
from kvstore.core.index.protocol import IndexFactory
from kvstore.core.index.radix import RadixIndex
from kvstore.core.pool.arena import Arena
from kvstore.core.pool.in_flight import Prefills
from kvstore.core.values.counters import Counters
from kvstore.core.values.events import EventLog
from kvstore.core.values.layout import NamespaceIdentity, PageLayout
from kvstore.core.values.page_hash import namespace_digest
from kvstore.core.values.slots import ExtentSlots
from kvstore.core.values.tokens import TOKEN_BYTES


class Namespace:
    """One tree of pages, and the arenas that they live in, of tier 1 and perhaps of tier 2.

    ``number`` counts namespaces by creation. ``detached_page_count`` counts
    pages that left the tree and are still held. ``named_pins`` stand by name, ``prefills``
    are what open reservations have announced to compute. For tier 3:
    ``loading`` are the digests of pages on their way from there, ``removals`` counts removals
    of pages that may not return, of which tier 3 was not told of ``removing`` yet, and
    ``losses`` how often tier 3 lost pages. One that is ``deleted`` has no pages, and never will.
    """

    def __init__(
        self,
        number: int,
        namespace_id: bytes,
        identity: NamespaceIdentity,
        layout: PageLayout,
        arena: Arena,
        now: float,
        index: IndexFactory = RadixIndex,
        lower_arena: Arena | None = None,
        *,
        events: EventLog | None = None,
    ) -> None:
        """``events`` is where it is noted what happens to it; a log of its own if not given."""
        self.number = number
        self.namespace_id = namespace_id
        self.identity = identity
        self.layout = layout
        self.arena = arena
        self.tenant = arena.tenant
        self.lower_arena = lower_arena
        self.created_at = now
        self.width = layout.page_tokens * TOKEN_BYTES
        self.index = index(self, layout.page_tokens)
        self.counters = Counters()
        self.detached_page_count = 0
        self.named_pin_count = 0
        self.prefills = Prefills(arena.owner, self.width)
        self.removals = 0
        self.removing = 0
        self.losses = 0
        self.deleted = False
        self.events = EventLog() if events is None else events

    @cached_property
    def digest(self) -> bytes:
        """What names it in tier 3, and what the digests of its sequences' first pages hang on."""
        return namespace_digest(self.tenant, self.identity, self.layout)

    @property
    def extents(self) -> Mapping[int, ExtentSlots]:
        """The extents of both tiers."""
        if self.lower_arena is None:
            return self.arena.extents
        return ChainMap(self.arena.extents, self.lower_arena.extents)

    @property
    def last(self) -> tuple[EvictionPolicy, int]:
        """The policy whose order decides what is gone, and how many slots both tiers have."""
        first, last = self.arena, self.lower_arena
        if last is None:
            return first.policy, first.slot_count
        return last.policy, first.slot_count + last.slot_count

    def arena_in(self, tier: int) -> Arena:
        """Return its arena in a tier, which MUST be there."""
        if tier == self.arena.tier:
            return self.arena
        assert self.lower_arena is not None  # who asks knows of a copy there
        return self.lower_arena

    def arenas(self) -> list[Arena]:
        """Return its arenas, the nearest first."""
        return [self.arena] if self.lower_arena is None else [self.arena, self.lower_arena]

    def leaf_changed(self, node: Node) -> None:
        """Offers a node to the policy of each tier that it is a leaf in."""
        if node.is_leaf:
            self.arena.policy.offer(node)
        lower = node.lower
        if lower is not None and lower.is_leaf:
            self.arena_in(lower.tier).policy.offer(lower)


def namespace_of(node: Node) -> Namespace:
    """Returns the namespace that owns a node's tree."""
    tree = node.tree
    assert isinstance(tree, Namespace)  # nobody else makes an index
    return tree
