"""Namespaces and arenas: open, list, peek, evict a prefix, delete."""

from collections.abc import Iterator
from itertools import count
from math import inf

from kvstore.core.cache_state import CacheState
from kvstore.core.eviction.protocol import PolicyFactory
from kvstore.core.index.node import Node, Position
from kvstore.core.index.protocol import IndexFactory
from kvstore.core.index.removal import part_of
from kvstore.core.journal.rows import NamespaceRow, Table
from kvstore.core.leases.journaling import lease_row
from kvstore.core.pool.arena import Arena, ArenaKey, Recycled, extent_row
from kvstore.core.pool.namespace import Namespace
from kvstore.core.pool.placement import FIRST, nearest, page_counts
from kvstore.core.pool.tenant import Tenant
from kvstore.core.values.counters import Counters
from kvstore.core.values.event_log import Cause, NamespaceEvent, NamespaceStep
from kvstore.core.values.layout import NamespaceIdentity, PageLayout
from kvstore.core.values.requests import (
    Caller,
    GroupWindow,
    Identity,
    Peeked,
    Removed,
    Sequence,
)
from kvstore.core.values.slots import ExtentSlots, Generations
from kvstore.core.verbs.group_windows import fit, require_windows, tier_for
from kvstore.core.verbs.lookup import in_flight_beyond, matchable_pages, rest_of
from kvstore.errors import InvalidField


class Namespaces:
    """Opens, lists, peeks into, evicts from and deletes namespaces, and makes their arenas.

    ``policy`` makes the eviction policy of each arena, and ``index`` the index of each
    namespace. ``arena_ids`` are the arenas' ids, counted from 1 by default. ``recycled``
    receives all slots that became FREE. A new arena has no memory until ``add_extent``.
    """

    def __init__(
        self,
        state: CacheState,
        policy: PolicyFactory,
        index: IndexFactory,
        arena_ids: Iterator[int] | None,
        recycled: Recycled | None,
    ) -> None:
        self._state = state
        self._policy = policy
        self._index = index
        self._arena_ids = count(1) if arena_ids is None else arena_ids
        self._recycled = recycled
        self._by_identity: dict[tuple[str, bytes, bytes, bytes], Namespace] = {}
        self._by_arena_key: dict[ArenaKey, Arena] = {}
        self._made = 0

    def open_namespace(
        self,
        caller: Caller,
        identity: NamespaceIdentity,
        layout: PageLayout,
        fresh_id: bytes,
        now: float,
    ) -> Namespace:
        """Returns the namespace of this identity, made under ``fresh_id`` if it is new.

        From now on the lease's processes are owed the extents of its arenas. Raises LayoutMismatch
        or QuotaExceeded, besides the errors of ``member``.
        """
        lease = self._state.member(caller)
        key = identity.key(lease.tenant)
        namespace = self._by_identity.get(key)
        if namespace is None:
            lease.owner.require_namespace_room()
            lease.owner.require_page_room(layout.page_bytes)
            if _arena_key(lease.owner, layout, FIRST) not in self._by_arena_key:
                lease.owner.require_arena_room(len(self._state.tiers))
            arenas = [self._arena_of(lease.owner, layout, tier) for tier in self._state.tiers]
            namespace = self._make(self._made + 1, fresh_id, identity, layout, arenas, now)
            self._state.events.now = now
            self._note_namespace(namespace, NamespaceStep.OPENED)
            self._write(namespace)
            self._clear_rows()
        namespace.layout.require_equal(layout)
        known = len(lease.arenas)
        for each in namespace.arenas():
            if each.tier == FIRST or self._state.tier_policy.in_place:
                lease.arenas[each.arena_id] = each
        if self._state.journal is not None and len(lease.arenas) > known:
            self._state.journal.put(Table.LEASES, lease.number, lease_row(lease))
        return namespace

    def restore(self, row: NamespaceRow, owner: Tenant, now: float) -> Namespace:
        """Returns the namespace of a row, made anew with its arenas for recovery.

        A later one MUST NOT be restored before an earlier one of the same identity is deleted.
        """
        tiers = zip(self._state.tiers, row.arena_ids, strict=False)
        arenas = [
            self.restore_arena(arena_id, _arena_key(owner, row.layout, tier), owner)
            for tier, arena_id in tiers
        ]
        return self._make(row.number, row.namespace_id, row.identity, row.layout, arenas, now)

    def restore_arena(self, arena_id: int, key: ArenaKey, owner: Tenant) -> Arena:
        """Returns the arena of a key, made under an id if there is none."""
        if key not in self._by_arena_key:
            policy = self._policy()
            policy.spills = key.tier != self._state.tiers[-1]
            arena = Arena(arena_id, key, policy, owner, self._recycled)
            self._state.arenas[arena.arena_id] = self._by_arena_key[key] = arena
            self._state.arenas_of.add(arena.tenant, arena.arena_id, arena)
            owner.arena_count += 1
        return self._by_arena_key[key]

    def _make(
        self,
        number: int,
        namespace_id: bytes,
        identity: NamespaceIdentity,
        layout: PageLayout,
        arenas: list[Arena],
        now: float,
    ) -> Namespace:
        """Makes a namespace in its arenas, the lowest tier first."""
        state, first = self._state, arenas[0]
        self._made = max(self._made, number)
        namespace = Namespace(
            number,
            namespace_id,
            identity,
            layout,
            first,
            now,
            self._index,
            *arenas[1:],
            events=state.events,
        )
        namespace.journal = state.journal
        key = identity.key(first.tenant)
        state.namespaces[namespace_id] = self._by_identity[key] = namespace
        state.namespaces_of.add(first.tenant, namespace_id, namespace)
        first.owner.namespace_count += 1
        if state.disk is not None:
            state.disk.open(namespace)
        return namespace

    def _write(self, namespace: Namespace, *, deleted: bool = False) -> None:
        """Writes a namespace to the journal."""
        if self._state.journal is None:
            return
        arena_ids = tuple(each.arena_id for each in namespace.arenas())
        row = NamespaceRow(
            namespace.number,
            namespace.namespace_id,
            namespace.tenant,
            namespace.identity,
            namespace.layout,
            arena_ids,
            deleted,
        )
        self._state.journal.put(Table.NAMESPACES, namespace.number, row)

    def _arena_of(self, owner: Tenant, layout: PageLayout, tier: int) -> Arena:
        key = _arena_key(owner, layout, tier)
        known = self._by_arena_key.get(key)
        if known is not None:
            return known
        # Recovered arenas have ids already.
        free = (each for each in self._arena_ids if each not in self._state.arenas)
        return self.restore_arena(next(free), key, owner)

    def add_extent(
        self,
        arena_id: int,
        extent_id: int,
        slot_count: int,
        generations: Generations | None = None,
        arena_offset: int = 0,
    ) -> None:
        """Gives an arena ``slot_count`` more slots, all FREE, whose ``generations`` are zero.

        ``arena_offset`` is the byte where they begin among the arena's extents.
        """
        arena = self._state.arenas[arena_id]
        extent = ExtentSlots(extent_id, slot_count, generations, arena.tier, arena_offset)
        if self._state.journal is not None:
            self._state.journal.put(Table.EXTENTS, extent_id, extent_row(arena, extent))
        arena.add_extent(extent)

    def peek(
        self,
        identity: Identity,
        namespace_id: bytes,
        tokens: bytes,
        now: float,
        groups: tuple[GroupWindow, ...] = (),
        group_start_page: int = 0,
    ) -> Peeked:
        """Returns what a match would cover. Has no effect at all.

        ``groups`` and ``group_start_page`` are those of ``MatchOptions``.
        """
        namespace = self._state.namespace(identity, namespace_id)
        index, layout = namespace.index, namespace.layout
        length = self._state.length(tokens, 0)
        pages = matchable_pages(length, layout.page_tokens)
        at = index.descend(Position(index.root, 0), tokens, pages)
        if groups:
            require_windows(namespace, groups)
            at, _ = fit(namespace, at, groups, group_start_page, tier_for(None, namespace))
        rest = b"" if groups else rest_of(namespace, at.depth, Sequence(tokens), length - 1)
        found = index.nearest(at, rest) if rest and layout.divides_by_token else None
        matched, copied = at.depth * layout.page_tokens, found[1] if found else 0
        return Peeked(
            matched,
            tuple(page_counts(nearest(at), at.depth)),
            copied,
            in_flight=in_flight_beyond(namespace, at, Sequence(tokens), now=now, idle=inf),
        )

    def evict_prefix(self, identity: Identity, namespace_id: bytes, tokens: bytes) -> Removed:
        """Removes all pages that hold a prefix's last token, and all that continue them.

        Without tokens, removes all pages of the namespace. Removes nothing if the prefix is not
        fully cached. Raises InvalidField for tokens that are not whole pages, if the layout does
        not divide by token.
        """
        namespace = self._state.namespace(identity, namespace_id)
        tops = self._begun_by(namespace, tokens)
        if self._state.disk is not None:
            self._state.disk.remove_prefix(namespace, tokens)
        return self._state.remove_pages(namespace, tops, Cause.REMOVED)

    def _begun_by(self, namespace: Namespace, tokens: bytes) -> list[Node]:
        """Returns the nodes that begin with a page that holds a prefix's last token."""
        index, layout = namespace.index, namespace.layout
        above, rest = divmod(max(self._state.length(tokens, 0) - 1, 0), layout.page_tokens)
        last = tokens[above * index.width :]
        if rest + 1 < layout.page_tokens and tokens and not layout.divides_by_token:
            raise InvalidField(field="tokens", value=len(tokens), why="not in whole pages")
        at = index.descend(Position(index.root, 0), tokens, above)
        return index.tops_beginning_with(at, last) if at.depth == above else []

    def thin(
        self, identity: Identity, namespace_id: bytes, tokens: bytes, most: int, cause: Cause
    ) -> Removed | None:
        """Removes a part of what ``evict_prefix`` would remove; None if what is left is no more.

        A part is ``most`` work, as ``removal_work`` counts it. Many pages can thus go in short
        steps. Raises the errors of ``evict_prefix``.
        """
        namespace = self._state.namespace(identity, namespace_id)
        tops = self._begun_by(namespace, tokens) if tokens else [namespace.index.root]
        part = part_of(namespace.index, tops, most)
        if not part:
            return None
        removed = self._state.remove_pages(namespace, part, cause)
        for top in tops:
            # The search for it may have split a node.
            namespace.index.compact(top)
        return removed

    def revise(self, namespace_digest: bytes, number: int) -> Removed:
        """Removes all pages of a namespace, some of which another host removed for all hosts.

        Page store ``number`` is shared with that host, and does not have them any more. Pages that
        somebody holds are detached. Does so for the other page stores alone if no such namespace is
        open.
        """
        disk = self._state.disk
        assert disk is not None  # or nobody could know of it
        disk.revise(namespace_digest, number)
        namespace = disk.namespaces.get(namespace_digest)
        if namespace is None:
            return Removed(0, 0)
        tops = list(namespace.index.root.children.values())
        return self._state.remove_pages(namespace, tops, Cause.REMOVED)

    def delete_namespace(self, identity: Identity, namespace_id: bytes) -> Removed:
        """Deletes a namespace with all its pages. Pages that somebody holds are detached.

        Ends the named pins in it. Leases may still release and abort what they hold of it, and no
        more, since nothing has its id any longer. Raises NamespaceNotFound.
        """
        namespace = self._state.namespace(identity, namespace_id)
        self._write(namespace, deleted=True)
        root = namespace.index.root
        removed = self._state.remove_pages(
            namespace, list(root.children.values()), Cause.NAMESPACE_DELETED
        )
        state = self._state
        for lease in state.table.holders(namespace.tenant):
            for reservation in lease.reservations.values():
                if reservation.namespace is namespace:
                    reservation.drop_prefill()
        if self._state.disk is not None:
            self._state.disk.remove(namespace, None)
            self._state.disk.close(namespace)
        self._note_namespace(namespace, NamespaceStep.DELETED)
        namespace.deleted = True
        state.leaving = [each for each in (*state.leaving, namespace) if each.detached_page_count]
        deleted = state.deleted.setdefault(namespace.tenant, Counters())
        deleted.add(namespace.counters)
        # From now on its counts are those of deleted namespaces.
        namespace.counters = deleted
        del state.namespaces[namespace_id]
        state.namespaces_of.drop(namespace.tenant, namespace_id)
        namespace.arena.owner.namespace_count -= 1
        del self._by_identity[namespace.identity.key(namespace.tenant)]
        if state.journal is not None:
            state.deleted_rows.append(namespace)
            self._clear_rows()
        return removed

    def _clear_rows(self) -> None:
        """Removes the rows of deleted namespaces of which nothing is left.

        The newest namespace keeps its row, so that no number comes twice.
        """
        journal, kept = self._state.journal, list[Namespace]()
        for each in self._state.deleted_rows:
            if journal is None or each.number == self._made or self._is_in_use(each):
                kept.append(each)
            else:
                journal.clear(Table.NAMESPACES, each.number)
        self._state.deleted_rows = kept

    def _is_in_use(self, namespace: Namespace) -> bool:
        """Returns True if a lease has a hold in a deleted namespace. Costs a look at each hold."""
        if namespace.detached_page_count:
            return True
        leases = self._state.table.leases_of.of(namespace.tenant).values()
        holds = (each for lease in leases for each in (lease.pins, lease.reservations))
        return any(hold.namespace is namespace for each in holds for hold in each.values())

    def _note_namespace(self, namespace: Namespace, step: NamespaceStep) -> None:
        log = self._state.events
        log.note(NamespaceEvent(log.now, namespace.tenant, namespace.namespace_id, step))


def _arena_key(owner: Tenant, layout: PageLayout, tier: int) -> ArenaKey:
    return ArenaKey(owner.name, layout.page_bytes, layout.tensor_parallel_size, tier)
