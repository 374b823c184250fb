"""Events on their way to one watcher: a bounded line, whose oldest are lost."""

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from kvstore.core.caller import Identity
from kvstore.core.events import Event


class Told(NamedTuple):
    """What a watcher is told: how many events were lost, and those that came after them."""

    lost_count: int
    events: list[Event]


class EventWatch:
    """The latest ``room`` events that a watcher is yet to be told. Not thread-safe.

    Those that ``identity`` may see: its tenant's, of an admin all; of ``namespace_id`` alone,
    if that is not empty.
    """

    def __init__(
        self, identity: Identity, namespace_id: bytes, *, room: int, wake: Callable[[], None]
    ) -> None:
        """``wake`` is called as the first event comes; it returns at once and asks nothing."""
        self.tenant = identity.tenant
        self.admin = identity.admin
        self._identity = identity
        self._namespace_id = namespace_id
        self._room = room
        self._wake = wake
        self._line: deque[Event] = deque()
        self._lost = 0

    def __len__(self) -> int:
        """How many events wait."""
        return len(self._line)

    def sees(self, tenant: str, namespace_id: bytes) -> bool:
        """Return whether it is told of a tenant's namespace, or of a tenant's leases."""
        chosen = not self._namespace_id or self._namespace_id == namespace_id
        return chosen and self._identity.sees(tenant)

    def offer(self, event: Event) -> int:
        """Let an event wait, if it is for this watcher; the oldest is lost if too many do.

        Returns how many were lost by that.
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

    def take(self, most: int) -> Told:
        """Return the next ``most`` events, and how many were lost before the first of them."""
        count = min(most, len(self._line))
        told = Told(self._lost, [self._line.popleft() for _ in range(count)])
        self._lost = 0
        return told
