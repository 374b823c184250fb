"""Changes of the copies of pages, for programs that follow which prefixes the store has.

They are changes of whole pages of a path, each with an id that no other page ever has. Partial
pages and pages of KV cache groups are left out. Unlike an event of the log a change has tokens.
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol, TypeAlias

from kvstore.core.values.layout import NamespaceIdentity, PageLayout

# The id of no page: the parent of first pages.
NO_PARENT = 0
# Bytes that a change takes beside its tokens, about.
CHANGE_BYTES = 256


class PageSpace(Protocol):
    """The namespace of a page, as far as a change names it."""

    number: int
    tenant: str
    identity: NamespaceIdentity
    layout: PageLayout


class CopiesStored(NamedTuple):
    """Pages of one path that got a copy in ``tier``.

    ``ids`` are the pages' ids, in prefix order. ``parent_id`` is the id of the page before the
    first one, or ``NO_PARENT``. ``tokens`` begin with the pages' tokens, and may be longer.
    """

    space: PageSpace
    tier: int
    parent_id: int
    ids: tuple[range, ...]
    tokens: bytes

    @property
    def size_bytes(self) -> int:
        """The memory that it takes, about."""
        return len(self.tokens) + CHANGE_BYTES


class CopiesRemoved(NamedTuple):
    """Pages of one path that lost their copy in ``tier``."""

    space: PageSpace
    tier: int
    ids: tuple[range, ...]

    @property
    def size_bytes(self) -> int:
        """The memory that it takes, about."""
        return CHANGE_BYTES


CopyChange: TypeAlias = CopiesStored | CopiesRemoved


class TakenChanges(NamedTuple):
    """A tenant's changes, in order. After them, ``lost_count`` changes were lost."""

    changes: list[CopyChange]
    lost_count: int


NOTHING_TAKEN = TakenChanges([], 0)


class ChangeQueue:
    """A tenant's changes that nobody took yet. Not thread-safe.

    Changes that do not fit are lost, and so are all later ones until :meth:`take`.
    """

    def __init__(self, room_bytes: int) -> None:
        self._room_bytes = room_bytes
        self._waiting_bytes = 0
        self._changes: list[CopyChange] = []
        self._lost_count = 0

    def add(self, change: CopyChange) -> bool:
        """Adds a change. Returns True if it is the first one since :meth:`take`."""
        self._waiting_bytes += change.size_bytes
        if self._lost_count or self._waiting_bytes > self._room_bytes:
            self._lost_count += 1
            return not self._changes and self._lost_count == 1
        self._changes.append(change)
        return len(self._changes) == 1

    def __bool__(self) -> bool:
        """Returns True if :meth:`take` has something to return."""
        return bool(self._changes or self._lost_count)

    def take(self) -> TakenChanges:
        """Returns what waits, and begins anew."""
        taken = TakenChanges(self._changes, self._lost_count)
        self._changes, self._lost_count, self._waiting_bytes = [], 0, 0
        return taken


class ChangeLog:
    """The changes of copies since its making, by tenant. Not thread-safe.

    It gives pages their ids if there is no journal, so it MUST be made before the first page.
    ``wake`` is called for the first change that waits. It must return at once.
    """

    def __init__(self, *, room_bytes: int, wake: Callable[[], None]) -> None:
        """At most ``room_bytes`` bytes of changes wait for each tenant."""
        self._room_bytes = room_bytes
        self._wake = wake
        self._next_id = NO_PARENT + 1
        self._queues: dict[str, ChangeQueue] = {}

    def take_ids(self, count: int) -> int:
        """Returns the first of ``count`` consecutive ids that no page had before."""
        first = self._next_id
        self._next_id += count
        return first

    def note(self, change: CopyChange) -> None:
        """Records a change."""
        tenant = change.space.tenant
        queue = self._queues.get(tenant)
        if queue is None:
            queue = self._queues[tenant] = ChangeQueue(self._room_bytes)
        if queue.add(change):
            self._wake()

    def tenants(self) -> list[str]:
        """Returns the tenants that had changes. Any thread may ask."""
        return list(self._queues)

    def has_changes(self, tenant: str) -> bool:
        """Returns True if changes of a tenant wait. Any thread may ask."""
        return bool(self._queues.get(tenant))

    def take(self, tenant: str) -> TakenChanges:
        """Returns a tenant's changes since the last call."""
        queue = self._queues.get(tenant)
        return NOTHING_TAKEN if queue is None else queue.take()
