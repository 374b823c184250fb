"""Builders for unit tests of the core: a letter a page, and caches with workers in them.

All pages begin with the same tokens and differ in their last, the letter: siblings
have to be told apart within the page.
"""

from array import array
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Items
from functools import partial
from itertools import count

from kvstore.core.cache import PrefixCache
from kvstore.core.eviction.policies import LeastRecentlyUsed
from kvstore.core.index.node import Node, Position
from kvstore.core.index.protocol import Index, IndexFactory
from kvstore.core.index.radix import RadixIndex, subtree
from kvstore.core.invariants.check import Invariants
from kvstore.core.leases.lease import Lease
from kvstore.core.pool.arena import Arena, ArenaKey
from kvstore.core.pool.namespace import Namespace
from kvstore.core.pool.pages import publish
from kvstore.core.pool.tenant import Tenant
from kvstore.core.pool.tier_policy import TierPolicy
from kvstore.core.values.layout import NamespaceIdentity, OpaqueContent, PageLayout
from kvstore.core.values.limits import Limits, Quotas, QuotaTable
from kvstore.core.values.requests import (
    Caller,
    Grant,
    GroupInsert,
    GroupWindow,
    Identity,
    Inserted,
    Match,
    MatchOptions,
    ReservationRequest,
    Sequence,
    SlotMoves,
)
from kvstore.core.values.runs import Run
from kvstore.core.values.slots import ExtentSlots, SlotState

EPOCH = 7
PAGE_TOKENS = 2
TENANT = "tenant-a"
OWNER = Identity(TENANT)
ADMIN = Identity("root", admin=True)
NAMESPACE_ID = b"namespace a 16 b"
# What begins a page, and what follows a sequence's last whole page.
FILLER = (7).to_bytes(4, "little")


class Backend:
    """The index of the namespaces and caches made here: a test's fixture chooses."""

    index: IndexFactory = RadixIndex


def paged(letters: str, page_tokens: int = PAGE_TOKENS) -> bytes:
    """Returns the tokens of one page a letter."""
    return b"".join(FILLER * (page_tokens - 1) + ord(x).to_bytes(4, "little") for x in letters)


def letters_of(edge: bytes, width: int) -> str:
    """Returns the letters that an edge's pages were made of."""
    ends = range(width, len(edge) + 1, width)
    return "".join(chr(int.from_bytes(edge[end - 4 : end], "little")) for end in ends)


def make_layout(
    *, page_bytes: int = 64, page_tokens: int = PAGE_TOKENS, divides_by_token: bool = False
) -> PageLayout:
    """Returns an opaque layout."""
    return PageLayout(page_tokens, page_bytes, 1, OpaqueContent(b"layout", divides_by_token))


def make_tenant(quotas: Quotas | None = None) -> Tenant:
    """Returns a tenant that has nothing."""
    return Tenant(TENANT, quotas or Quotas(), Limits())


def make_arena(*slot_counts: int) -> Arena:
    """Returns an arena with one extent a count, numbered from 1."""
    arena = Arena(1, ArenaKey(TENANT, 64, 1), LeastRecentlyUsed(), make_tenant())
    for extent_id, slot_count in enumerate(slot_counts, start=1):
        arena.add_extent(ExtentSlots(extent_id, slot_count))
    return arena


def make_namespace(
    slots: int = 32, *, page_tokens: int = PAGE_TOKENS, arena: Arena | None = None
) -> Namespace:
    """Returns an empty namespace with an arena of one extent, unless one is given."""
    layout = make_layout(page_tokens=page_tokens)
    identity = NamespaceIdentity(b"model")
    return Namespace(
        1, NAMESPACE_ID, identity, layout, arena or make_arena(slots), 100.0, Backend.index
    )


def plant(namespace: Namespace, letters: str, last_use: int = 0) -> Position:
    """Publishes what is not cached of ``letters``, used at ``last_use``, and offer the leaf."""
    index, arena = namespace.index, namespace.arena
    tokens = paged(letters, namespace.layout.page_tokens)
    at = index.descend(Position(index.root, 0), tokens, len(letters))
    slots = array("Q")
    if at.depth < len(letters):
        arena.take(len(letters) - at.depth, arena.extents, into=slots)
        at, _, _ = publish(namespace, at, tokens[at.depth * index.width :], slots)
    at.node.last_use = last_use
    if not at.node.children:
        arena.policy.offer(at.node)
    return at


def node_at(index: Index, letters: str) -> Node:
    """Returns the node that the last page of ``letters``, which is cached, lies in."""
    tokens = paged(letters, index.width // 4)
    at = index.descend(Position(index.root, 0), tokens, len(letters))
    assert at.depth == len(letters)
    return at.node


def shape(index: Index) -> dict[str, object]:
    """Returns the tree in letters: each edge, and below it the edges that continue it.

    Where nodes have one page each, those without a fork between them are one edge.
    """

    def run(node: Node) -> tuple[str, Node]:
        letters = letters_of(node.edge, index.width)
        while not index.joins_nodes and len(node.children) == 1:
            [node] = node.children.values()
            letters += letters_of(node.edge, index.width)
        return letters, node

    def below(node: Node) -> dict[str, object]:
        runs = [run(each) for each in node.children.values()]
        return {letters: below(last) for letters, last in runs}

    return below(index.root)


def picture(index: Index) -> list[tuple[object, ...]]:
    """Returns the tree's whole structure, to be compared with a later one."""
    return [
        (
            *(node.number, node.edge, list(node.slots), node.start, node.detached, node.queued),
            *(list(node.children), node.parent and node.parent.number, set(node.anchors)),
        )
        for node in subtree(index.root)
    ]


def places(runs: Iterable[Run]) -> list[int]:
    """Returns the slots' indexes of an answer, in page order."""
    return [index for run in runs for index in run.indexes]


class CoreWorld:
    """One cache with a namespace, an arena a tier, and a worker that mapped them."""

    def __init__(
        self,
        *,
        slots: int = 8,
        limits: Limits | None = None,
        quotas: Quotas | None = None,
        page_tokens: int = PAGE_TOKENS,
        divides_by_token: bool = False,
        lower_slots: int = 0,
        tier_policy: TierPolicy | None = None,
        page_stores: int = 0,
        journal_of: Callable[[PrefixCache, Callable[[], PrefixCache]], object] | None = None,
    ) -> None:
        """``journal_of`` is called with the cache and what makes another one, before all else."""
        self.now = 100.0
        self.page_tokens = page_tokens
        self.layout = make_layout(page_tokens=page_tokens, divides_by_token=divides_by_token)
        make = partial(
            PrefixCache,
            EPOCH,
            limits or Limits(),
            quotas=QuotaTable(quotas or Quotas()),
            index=Backend.index,
            tier_policy=tier_policy,
            page_stores=page_stores,
        )
        self.cache = make()
        if journal_of is not None:
            journal_of(self.cache, make)
        self.laws = Invariants(self.cache)
        self._numbers = count(1)
        self.worker = self.join("first")
        self.cache.add_extent(1, 1, slots)
        if tier_policy is not None:
            self.cache.add_extent(2, 2, lower_slots)
        self.worker.map_memory()

    @property
    def namespace(self) -> Namespace:
        """The namespace that all workers use."""
        return self.cache.namespaces[NAMESPACE_ID]

    @property
    def arena(self) -> Arena:
        """The namespace's arena."""
        return self.namespace.arena

    def join(self, name: str) -> "Worker":
        """Joins a worker with one process, which has mapped all extents, to the namespace."""
        lease_id = name.ljust(16).encode()
        caller = Caller(OWNER, lease_id, b"secret of " + lease_id, EPOCH)
        self.cache.grant(caller, ttl=None, display_name=name, features=(), now=self.now)
        number = next(self._numbers)
        self.cache.bind(caller, process_id=number, pid=1000 + number, uid=1)
        identity = NamespaceIdentity(b"model")
        self.cache.open_namespace(caller, identity, self.layout, NAMESPACE_ID, self.now)
        worker = Worker(self, caller, number)
        worker.map_memory()
        return worker

    def states(self) -> dict[str, int]:
        """Returns how many slots are in each state that some are in."""
        return {state.name: n for state in SlotState if (n := self.arena.counts[state])}

    def shape(self) -> dict[str, object]:
        """Returns the namespace's tree in letters."""
        return shape(self.namespace.index)

    def evict_prefix(self, letters: str) -> tuple[int, int]:
        """Removes a prefix's last page and all below: (pages given back, pages detached)."""
        removed = self.cache.evict_prefix(OWNER, NAMESPACE_ID, paged(letters, self.page_tokens))
        return removed.evicted_page_count, removed.detached_page_count


class Worker:
    """A lease with one process; sends each sequence with one token more than its pages."""

    def __init__(self, world: CoreWorld, caller: Caller, process_id: int) -> None:
        self.world = world
        self.cache = world.cache
        self.caller = caller
        self.process_id = process_id
        self._ids = count(1000)

    @property
    def lease(self) -> Lease:
        """The lease in the cache's table."""
        return self.cache.table.find(self.caller)

    def sequence(self, letters: str, page: int = 0, **base: int) -> Sequence:
        """Returns the sequence whose pages from ``page`` on are ``letters``."""
        page_tokens = self.world.page_tokens
        return Sequence(paged(letters, page_tokens) + FILLER, page * page_tokens, **base)

    def map_memory(self) -> None:
        """Acknowledges all extents owed."""
        self.cache.acknowledge(self.process_id, self.cache.extents_owed(self.process_id))

    def match(self, letters: str, pin_id: int, page: int = 0, **base: int) -> Match:
        """Match ``letters``, that stand from ``page`` on."""
        sequence, options = self.sequence(letters, page, **base), MatchOptions(pin_id)
        return self.cache.match(self.caller, NAMESPACE_ID, sequence, options, self.world.now)

    def reserve(self, reservation_id: int, pages: int, start: int = 0) -> Grant:
        """Reserves ``pages`` pages from page ``start`` on."""
        request = ReservationRequest(reservation_id, start, pages)
        return self.cache.reserve(self.caller, NAMESPACE_ID, [request], self.world.now)[0]

    def acquire(
        self, letters: str, pin_id: int, reservation_id: int, total: int | None = None
    ) -> tuple[Match, Grant | None]:
        """Match ``letters`` and reserve the rest of ``total`` pages, by default of theirs."""
        return self.cache.acquire(
            self.caller,
            NAMESPACE_ID,
            self.sequence(letters),
            MatchOptions(pin_id),
            reservation_id=reservation_id,
            total_page_count=len(letters) if total is None else total,
            now=self.world.now,
        )

    def insert(
        self,
        reservation_id: int,
        letters: str,
        page: int = 0,
        *,
        checksums: Items[int] = (),
        moves: SlotMoves | None = None,
        **base: int,
    ) -> Inserted:
        """Inserts ``letters`` as the pages from ``page`` on."""
        page_tokens = self.world.page_tokens
        sequence = Sequence(paged(letters, page_tokens), page * page_tokens, **base)
        return self.cache.insert(
            self.caller,
            reservation_id,
            sequence,
            self.world.now,
            checksums=checksums,
            moves=moves,
        )

    def match_groups(
        self, letters: str, pin_id: int, groups: dict[int, int], start_page: int = 0
    ) -> Match:
        """Match ``letters`` with the windows of some groups, by group."""
        windows = tuple(GroupWindow(*each) for each in groups.items())
        options = MatchOptions(pin_id, groups=windows, group_start_page=start_page)
        sequence = self.sequence(letters)
        return self.cache.match(self.caller, NAMESPACE_ID, sequence, options, self.world.now)

    def publish_groups(self, letters: str, **pages: str) -> None:
        """Cache a sequence, and pages of groups: ``g1="1.1"`` is those of its page 0 and 2.

        Holds nothing of them afterwards.
        """
        spare, reservation = next(self._ids), next(self._ids)
        groups = [
            (int(name[1:]), [page for page, mark in enumerate(marks) if mark == "1"])
            for name, marks in pages.items()
        ]
        self.reserve(spare, len(letters) + sum(len(positions) for _, positions in groups))
        offsets = iter(range(len(letters), 1 << 30))
        inserts = [
            GroupInsert(group, positions, [next(offsets) for _ in positions])
            for group, positions in groups
        ]
        moves = SlotMoves(spare, range(len(letters)), inserts)
        self.insert(reservation, letters, moves=moves)
        self.abort(reservation, spare)

    def release(self, *pin_ids: int) -> None:
        """Releases pins."""
        self.cache.release(self.caller, pin_ids, self.world.now)

    def abort(self, *reservation_ids: int) -> None:
        """Ends reservations."""
        self.cache.abort(self.caller, reservation_ids, self.world.now)

    def publish(self, *sequences: str) -> None:
        """Cache sequences and hold nothing of them afterwards."""
        for letters in sequences:
            pin_id, reservation_id = next(self._ids), next(self._ids)
            match, grant = self.acquire(letters, pin_id, reservation_id)
            assert grant is not None
            known = match.matched_token_count // self.world.page_tokens
            base = {"base_pin_id": pin_id} if known else {}
            self.insert(reservation_id, letters[known:], known, **base)
            self.abort(reservation_id)
            self.release(pin_id)
