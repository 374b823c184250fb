"""What happened lately, and who is told. Costs an entry of a bounded list where nobody watches."""

from collections import deque

from kvstore.core.event_watch import EventWatch
from kvstore.core.events import Event
from kvstore.core.limits import Limits
from kvstore.errors import QuotaExceeded


class EventLog:
    """The latest events, and the watches that each is handed to. Not thread-safe.

    ``now`` is the latest time that the core was told, in seconds: an event's. ``count`` are all
    that there were, ``lost_count`` all that a watch lost, for each watch that did. ``watches``
    are those that go on.
    """

    def __init__(self, limits: Limits | None = None) -> None:
        limits = limits or Limits()
        self.now = 0.0
        self.count = 0
        self.lost_count = 0
        self.recent: deque[Event] = deque(maxlen=limits.max_remembered_events)
        self.watches: tuple[EventWatch, ...] = ()
        # Those that are told of nothing that happens from now on.
        self._looks_back: tuple[EventWatch, ...] = ()
        # Those that see each tenant's events, and those that see every other tenant's.
        self._by_tenant: dict[str, tuple[EventWatch, ...]] = {}
        self._of_all: tuple[EventWatch, ...] = ()
        self._max_watchers = limits.max_watchers
        self._max_watchers_in_all = limits.max_watchers_in_all

    def note(self, event: Event) -> None:
        """Take in what happened."""
        self.count += 1
        self.recent.append(event)
        if not self.watches:
            return
        for watch in self._by_tenant.get(event.tenant, self._of_all):
            self.lost_count += watch.offer(event)

    def is_watched(self, tenant: str, namespace_id: bytes) -> bool:
        """Return whether anybody is told what happens in a namespace."""
        watches = self._by_tenant.get(tenant, self._of_all)
        return bool(watches) and any(each.sees(tenant, namespace_id) for each in watches)

    def begin(self, watch: EventWatch, *, with_history: bool, goes_on: bool = True) -> None:
        """Hand what happens from now on to a watch, what is remembered first if that is wanted.

        Not what happens from now on, unless it ``goes_on``. Of either kind a tenant has at most
        as many as there is room left for, ``max_watchers`` at most: however many watch, another
        tenant finds room. A place is taken until :meth:`end`. Raises :class:`QuotaExceeded`.
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
        """Hand nothing more to a watch; one that ended already is passed over."""
        self._keep(tuple(each for each in self.watches if each is not watch))
        self._looks_back = tuple(each for each in self._looks_back if each is not watch)

    def _keep(self, watches: tuple[EventWatch, ...]) -> None:
        """Have these and no others: what happens to a tenant costs it a look at its own."""
        self.watches = watches
        self._of_all = tuple(each for each in watches if each.admin)
        tenants = {each.tenant for each in watches if not each.admin}
        self._by_tenant = {
            tenant: tuple(each for each in watches if each.admin or each.tenant == tenant)
            for tenant in tenants
        }
