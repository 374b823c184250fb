"""A namespace: its identity, its layout, its index and its arenas."""

from collections import ChainMap
from collections.abc import Mapping
from functools import cached_property

from kvstore.core.eviction.protocol import EvictionPolicy
from kvstore.core.index.node import Node
from kvstore.core.index.protocol import IndexFactory
from kvstore.core.index.radix import RadixIndex
from kvstore.core.journal.journal import Journal
from kvstore.core.pool.arena import Arena
from kvstore.core.pool.prefills import Prefills
from kvstore.core.values.counters import Counters
from kvstore.core.values.event_log import EventLog
from kvstore.core.values.layout import NamespaceIdentity, PageLayout
from kvstore.core.values.page_hash import namespace_digest
from kvstore.core.values.slots import ExtentSlots
from kvstore.core.values.tokens import TOKEN_BYTES
from kvstore.errors import InvalidField


class Namespace:
    """One tree of pages, and the arenas that they are in: of tier 1, and perhaps of tier 2.

    ``number`` counts namespaces by creation. ``detached_page_count`` counts the pages that left
    the tree and are still held. ``prefills`` are announced by open reservations. A ``deleted``
    namespace has no pages and never will.

    ``removals`` counts removals of pages that may not return from tier 3. For each page store,
    ``removing`` of these are not reported yet, and ``losses`` counts how often it lost pages.
    ``journal`` is that of the cache, or None. ``condemned`` has the keys of condemned nodes, as
    ``index/condemned.py`` explains.
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
        """``events`` receives what happens to it, and is a log of its own by default."""
        self.number = number
        self.namespace_id = namespace_id
        self.identity = identity
        self.layout = layout
        self.arena = arena
        self.tenant = arena.tenant
        self.lower_arena = lower_arena
        # The extents of all tiers.
        self.extents: Mapping[int, ExtentSlots] = arena.extents
        if lower_arena is not None:
            self.extents = ChainMap(arena.extents, lower_arena.extents)
        self.created_at = now
        self.width = layout.page_tokens * TOKEN_BYTES
        self.index = index(self, layout.page_tokens)
        self.counters = Counters()
        self.detached_page_count = 0
        self.named_pin_count = 0
        self.condemned: dict[Node, bytes] = {}
        self.prefills = Prefills(arena.owner, self.width)
        self.removals = 0
        self.removing: tuple[int, ...] = (0,)
        self.losses: tuple[int, ...] = (0,)
        self.deleted = False
        self.events = EventLog() if events is None else events
        self.journal: Journal | None = None

    @cached_property
    def digest(self) -> bytes:
        """The namespace's name in tier 3, and the parent of the digests of first pages."""
        return namespace_digest(self.tenant, self.identity, self.layout, self.arena.owner.key)

    def lose(self, number: int | None = None) -> None:
        """Records that a page store lost pages, or each one without ``number``.

        None of the namespace's pages is known to be there any more.
        """
        self.losses = tuple(
            count + (number is None or number == each) for each, count in enumerate(self.losses)
        )

    @property
    def moves_copies(self) -> bool:
        """True if copies move between tiers."""
        return self.lower_arena is not None

    def page_position(self, position: int) -> int:
        """Returns a position in pages; raises InvalidField unless it is page-aligned."""
        pages, rest = divmod(position, self.layout.page_tokens)
        if rest:
            raise InvalidField(field="position", value=position, why="not at a page's start")
        return pages

    @property
    def last(self) -> tuple[EvictionPolicy, int]:
        """The policy of the last tier, whose victims leave, and the number of all tiers' slots."""
        first, last = self.arena, self.lower_arena
        if last is None:
            return first.policy, first.slot_count
        return last.policy, first.slot_count + last.slot_count

    def arena_in(self, tier: int) -> Arena:
        """Returns its arena in a tier, which MUST exist."""
        if tier == self.arena.tier:
            return self.arena
        assert self.lower_arena is not None  # the caller knows of a copy there
        return self.lower_arena

    def arenas(self) -> list[Arena]:
        """Returns its arenas, the lowest tier first."""
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
