"""Events of the cache, the log that keeps the latest, and the watches that receive them.

No event contains a token. ``at`` is the time of the event in seconds, as the core last
heard it. Without a watch an event costs one entry of a bounded list.
"""

from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import NamedTuple, TypeAlias

from kvstore.core.values.change_log import ChangeLog
from kvstore.core.values.limits import Limits
from kvstore.core.values.requests import Identity
from kvstore.errors import QuotaExceeded


class PagesChange(Enum):
    """The kinds of changes to pages."""

    INSERTED = 1
    REMOVED = 2
    # The page has a copy in another tier besides.
    COPIED = 3
    COPIES_REMOVED = 4


class Cause(Enum):
    """The reasons for changes to pages."""

    INSERTED = 1
    LOADED = 2
    MOVED = 3
    EVICTED = 4
    REMOVED = 5
    SUPERSEDED = 6
    CORRUPT = 7
    RETIRED = 8
    NAMESPACE_DELETED = 9


class LeaseStep(Enum):
    """The steps in a lease's life."""

    GRANTED = 1
    EXPIRED = 2
    ENDED = 3


class NamespaceStep(Enum):
    """The steps in a namespace's life."""

    OPENED = 1
    DELETED = 2


class PagesEvent(NamedTuple):
    """A change to pages of one path, from ``start_page`` on.

    ``path_digest`` has 128 bits and names the path through the last of them. It is empty if
    nobody watched.
    """

    at: float
    tenant: str
    namespace_id: bytes
    change: PagesChange
    cause: Cause
    start_page: int
    page_count: int
    tier: int
    path_digest: bytes


class LeaseEvent(NamedTuple):
    """A step in a lease's life. It belongs to no namespace."""

    at: float
    tenant: str
    namespace_id: bytes
    step: LeaseStep
    lease_id: bytes
    display_name: str


class NamespaceEvent(NamedTuple):
    """A step in a namespace's life."""

    at: float
    tenant: str
    namespace_id: bytes
    step: NamespaceStep


Event: TypeAlias = PagesEvent | LeaseEvent | NamespaceEvent


class EventBatch(NamedTuple):
    """An answer to a watcher: the number of lost events, and the events that came after them."""

    lost_count: int
    events: list[Event]


class EventWatch:
    """The latest ``room`` events that a watcher has not received yet. Not thread-safe.

    Contains the events that ``identity`` may see: those of its tenant, or all for an admin.
    With a ``namespace_id`` it contains those of that namespace only.
    """

    def __init__(
        self, identity: Identity, namespace_id: bytes, *, room: int, wake: Callable[[], None]
    ) -> None:
        """``wake`` is called when the first event arrives. It must return at once."""
        self.tenant = identity.tenant
        self.admin = identity.admin
        self._identity = identity
        self._namespace_id = namespace_id
        self._room = room
        self._wake = wake
        self._line: deque[Event] = deque()
        self._lost = 0

    def __len__(self) -> int:
        """Returns how many events wait."""
        return len(self._line)

    def sees(self, tenant: str, namespace_id: bytes) -> bool:
        """Returns True if the watcher may receive events of a namespace or of a tenant."""
        chosen = not self._namespace_id or self._namespace_id == namespace_id
        return chosen and self._identity.sees(tenant)

    def offer(self, event: Event) -> int:
        """Adds an event if it is for this watcher. Beyond ``room``, drops the oldest.

        Returns how many events were dropped.
        """
        if not self.sees(event.tenant, event.namespace_id):
            return 0
        lost = int(len(self._line) >= self._room)
        if lost:
            self._line.popleft()
            self._lost += lost
        self._line.append(event)
        if len(self._line) == 1:
            self._wake()
        return lost

    def take(self, most: int) -> EventBatch:
        """Returns the next ``most`` events, and how many were lost before the first of them."""
        count = min(most, len(self._line))
        batch = EventBatch(self._lost, [self._line.popleft() for _ in range(count)])
        self._lost = 0
        return batch


class EventLog:
    """The latest events, and the watches that receive them. Not thread-safe.

    ``now`` is the latest time that the core heard, in seconds, and the time of the next event.
    ``count`` counts all events. ``lost_count`` counts the events that a watch lost, once for
    each watch. ``watches`` are the watches that receive new events. ``changes`` receives changes of
    copies, unless it is None.
    """

    def __init__(self, limits: Limits | None = None) -> None:
        limits = limits or Limits()
        self.now = 0.0
        self.count = 0
        self.lost_count = 0
        self.recent: deque[Event] = deque(maxlen=limits.max_remembered_events)
        self.watches: tuple[EventWatch, ...] = ()
        self.changes: ChangeLog | None = None
        # Watches of the history only, which receive no new events.
        self._looks_back: tuple[EventWatch, ...] = ()
        # The watches for each tenant's events, and those for every other tenant's.
        self._by_tenant: dict[str, tuple[EventWatch, ...]] = {}
        self._of_all: tuple[EventWatch, ...] = ()
        self._max_watchers = limits.max_watchers
        self._max_watchers_in_all = limits.max_watchers_in_all

    def note(self, event: Event) -> None:
        """Records an event."""
        self.count += 1
        self.recent.append(event)
        if not self.watches:
            return
        for watch in self._by_tenant.get(event.tenant, self._of_all):
            self.lost_count += watch.offer(event)

    def is_watched(self, tenant: str, namespace_id: bytes) -> bool:
        """Returns True if a watch receives the events of a namespace."""
        watches = self._by_tenant.get(tenant, self._of_all)
        return bool(watches) and any(each.sees(tenant, namespace_id) for each in watches)

    def begin(self, watch: EventWatch, *, with_history: bool, goes_on: bool = True) -> None:
        """Gives new events to a watch, after the remembered ones if ``with_history`` is set.

        Without ``goes_on`` the watch receives no new events. A tenant has at most ``max_watchers``
        watches of either kind, and never the last free place, so another tenant finds one. The
        place is taken until :meth:`end`. Raises :class:`QuotaExceeded`.
        """
        of_its_kind = self.watches if goes_on else self._looks_back
        room = self._max_watchers_in_all - len(of_its_kind)
        mine = sum(each.tenant == watch.tenant for each in of_its_kind)
        if mine >= min(room, self._max_watchers):
            raise QuotaExceeded(quota="watchers", maximum=self._max_watchers)
        if goes_on:
            self._keep((*self.watches, watch))
        else:
            self._looks_back += (watch,)
        for event in self.recent if with_history else ():
            self.lost_count += watch.offer(event)

    def end(self, watch: EventWatch) -> None:
        """Gives no more events to a watch. Does nothing if it ended before."""
        self._keep(tuple(each for each in self.watches if each is not watch))
        self._looks_back = tuple(each for each in self._looks_back if each is not watch)

    def _keep(self, watches: tuple[EventWatch, ...]) -> None:
        """Replaces the watches. An event then costs a look at the watches of its tenant only."""
        self.watches = watches
        self._of_all = tuple(each for each in watches if each.admin)
        tenants = {each.tenant for each in watches if not each.admin}
        self._by_tenant = {
            tenant: tuple(each for each in watches if each.admin or each.tenant == tenant)
            for tenant in tenants
        }
