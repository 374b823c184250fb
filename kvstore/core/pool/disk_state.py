"""The page stores in the core: touched pages and removals. The core knows none of their pages."""

from collections import deque
from collections.abc import Collection
from typing import NamedTuple

from kvstore.core.index.node import Node, Position
from kvstore.core.journal.journal import Journal
from kvstore.core.journal.rows import RemovalRow, Table
from kvstore.core.pool.namespace import Namespace, namespace_of
from kvstore.core.values.page_hash import page_digests

# The most touches that wait. Beyond that the oldest are dropped, and the disk misses them.
MAX_TOUCHES = 1 << 14


class Touch(NamedTuple):
    """The pages from ``start`` through ``end`` of the path to ``node`` were inserted or matched."""

    node: "Node"
    start: int
    end: int


class TouchQueue:
    """Touches that wait for one page store, at most ``most`` of them. Tenants take turns.

    Each tenant's touches come in their order. Beyond ``most`` the oldest touch of the tenant with
    the most of them is dropped, so a busy tenant pushes out nobody else's.
    """

    def __init__(self, most: int = MAX_TOUCHES) -> None:
        self._most = most
        self._count = 0
        # The tenant whose turn it is comes first.
        self._by_tenant: dict[str, deque[Touch]] = {}

    def __len__(self) -> int:
        return self._count

    @property
    def is_shared(self) -> bool:
        """True if touches of several tenants wait."""
        return len(self._by_tenant) > 1

    def append(self, touch: Touch, tenant: str) -> None:
        """Adds a tenant's touch behind its others."""
        self._by_tenant.setdefault(tenant, deque()).append(touch)
        self._count += 1
        if self._count > self._most:
            self._take(max(self._by_tenant, key=lambda each: len(self._by_tenant[each])))

    def popleft(self) -> Touch:
        """Removes and returns the next touch, which MUST exist, and ends its tenant's turn."""
        tenant = next(iter(self._by_tenant))
        touch = self._take(tenant)
        if tenant in self._by_tenant:
            self._by_tenant[tenant] = self._by_tenant.pop(tenant)
        return touch

    def put_back(self, touch: Touch, tenant: str) -> None:
        """Adds a touch before the tenant's others, for its next turn."""
        self._by_tenant.setdefault(tenant, deque()).appendleft(touch)
        self._count += 1

    def _take(self, tenant: str) -> Touch:
        touches = self._by_tenant[tenant]
        touch = touches.popleft()
        self._count -= 1
        if not touches:
            del self._by_tenant[tenant]
        return touch

    def clear(self) -> None:
        """Drops all touches."""
        self._by_tenant.clear()
        self._count = 0


class RemovedPrefix(NamedTuple):
    """A page that must leave the page stores, together with everything that continues it.

    Without ``page_digest`` it is every page of the namespace. ``number`` counts removals, and is
    zero for one that the journal need not have. Page store ``known_to`` removed the pages before.
    ``is_corrupt`` says that the page changed in memory, and that nobody asked for the removal.
    """

    namespace_id: bytes
    namespace_digest: bytes
    page_digest: bytes | None
    number: int = 0
    known_to: int | None = None
    is_corrupt: bool = False


class DiskState:
    """Touched pages, and removals that the page stores have to carry out. Not thread-safe.

    Each page store has ``touches`` of its own, and ``removed`` that nobody reported to it yet. So
    none waits for another.

    ``namespaces`` are the open ones, by digest. ``untold`` counts for each page store, by the
    digest of a namespace that is not open any more, the removals that are not yet reported to it.
    ``last_number`` is that of the latest removal.
    """

    def __init__(self, page_stores: int = 1) -> None:
        self._journal: Journal | None = None
        self.last_number = 0
        self.touches = [TouchQueue() for _ in range(page_stores)]
        self.removed: list[list[RemovedPrefix]] = [[] for _ in range(page_stores)]
        self.namespaces: dict[bytes, Namespace] = {}
        self.untold: dict[bytes, tuple[int, ...]] = {}
        # How many page stores lack the report of a removal in the journal, by its number.
        self._lacking: dict[int, int] = {}

    def journal_to(self, journal: Journal | None) -> None:
        """Writes what changes from now on to a journal."""
        self._journal = journal

    def open(self, namespace: "Namespace") -> None:
        """Adds a namespace. The disk may first have to forget an earlier one of this identity."""
        none = (0,) * len(self.touches)
        namespace.removing = self.untold.pop(namespace.digest, none)
        namespace.losses = none
        self.namespaces[namespace.digest] = namespace

    def close(self, namespace: "Namespace") -> None:
        """Removes a deleted namespace, but keeps the numbers of its unreported removals."""
        del self.namespaces[namespace.digest]
        self.untold[namespace.digest] = namespace.removing

    def told(self, removed: RemovedPrefix, number: int = 0) -> None:
        """Records that a removal was reported to page store ``number``.

        The journal has it until all of them have the report.
        """
        left = self._lacking.pop(removed.number, 0) - 1
        if left > 0:
            self._lacking[removed.number] = left
        elif left == 0 and self._journal is not None:
            self._journal.clear(Table.REMOVALS, removed.number)
        self._count(removed.namespace_digest, -1, [number])

    def _count(self, namespace_digest: bytes, change: int, numbers: Collection[int]) -> None:
        """Counts an unreported removal up or down for some page stores."""
        namespace = self.namespaces.get(namespace_digest)
        none = (0,) * len(self.touches)
        before = (
            self.untold.get(namespace_digest, none) if namespace is None else namespace.removing
        )
        now = tuple(
            count + change if number in numbers else count for number, count in enumerate(before)
        )
        if namespace is not None:
            namespace.removing = now
        elif any(now):
            self.untold[namespace_digest] = now
        else:
            del self.untold[namespace_digest]

    def touched(self, at: "Position", start: int = 0) -> None:
        """Records a touch of a path's whole pages from ``start`` on, for each page store.

        Leaves out a page store that has all of them.
        """
        node, pages = at
        if pages and len(node.edge) < node.tree.width:
            # The disk keeps no partial pages.
            assert node.parent is not None  # the root has no pages
            node = node.parent
            pages = len(node.slots)
        if node.start + pages <= start:
            return
        known, losses = node.page_hashes, node.tree.losses
        for number, touches in enumerate(self.touches):
            if known is None or known.kept_in(number, losses) < pages:
                touches.append(Touch(node, start, node.start + pages), namespace_of(node).tenant)

    def remove_prefix(
        self, namespace: "Namespace", tokens: bytes, *, is_corrupt: bool = False
    ) -> None:
        """Records that no page may return that holds a prefix's last token.

        The disk cannot search by partial page, so it drops the page above as well.
        """
        whole = len(tokens) - len(tokens) % namespace.index.width
        digest = None
        for each in page_digests(namespace.digest, tokens[:whole], namespace.index.width):
            digest = each
        if whole < len(tokens):
            namespace.lose()
        self.remove(namespace, digest, is_corrupt=is_corrupt)

    def remove(
        self, namespace: "Namespace", page_digest: bytes | None, *, is_corrupt: bool = False
    ) -> None:
        """Records that a page may not return, nor any page after it. None stands for all pages.

        No read under way in the namespace publishes after this, and none begins from a page store
        before that has the report. Does nothing for a deleted namespace, whose pages were all
        removed already.
        """
        if namespace.deleted:
            return
        self.last_number += 1
        removed = RemovedPrefix(
            namespace.namespace_id, namespace.digest, page_digest, self.last_number
        )
        if self._journal is not None:
            row = RemovalRow(self.last_number, *removed[:3])
            self._journal.put(Table.REMOVALS, self.last_number, row)
        namespace.removals += 1
        self.owe(removed._replace(is_corrupt=is_corrupt))

    def revise(self, namespace_digest: bytes, number: int) -> None:
        """Records that another host removed pages of a namespace from page store ``number``.

        Nothing of the namespace may return from any page store that has not the report. After a
        restart that one says it again, so the journal has no row of it.
        """
        namespace = self.namespaces.get(namespace_digest)
        namespace_id = b""
        if namespace is not None:
            namespace_id = namespace.namespace_id
            namespace.removals += 1
            namespace.lose(number)
        self.owe(RemovedPrefix(namespace_id, namespace_digest, None, known_to=number))

    def owe(self, removed: RemovedPrefix) -> None:
        """Adds a removal to those that each page store has to carry out."""
        numbers = range(len(self.touches))
        if removed.number:
            self._lacking[removed.number] = len(numbers)
        self._count(removed.namespace_digest, 1, numbers)
        for each in self.removed:
            each.append(removed)
