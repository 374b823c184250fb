"""Tombstones: ids that were released, under which a call that comes late fails."""

from collections import OrderedDict
from collections.abc import Hashable

from kvstore.errors import Tombstoned


class Tombstones:
    """Ids that were released, kept for longer than any call can be under way.

    Of more than ``most`` the oldest go: what is left behind is bounded in number
    too. ``lifetime`` is in seconds. ``until`` is by id when each goes.
    """

    def __init__(self, lifetime: float, most: int) -> None:
        self._lifetime = lifetime
        self._most = most
        self.until: OrderedDict[Hashable, float] = OrderedDict()

    def leave(self, key: Hashable, now: float) -> None:
        """Leave a tombstone; a newer one replaces an older one."""
        self.until[key] = now + self._lifetime
        self.until.move_to_end(key)
        if len(self.until) > self._most:
            self.until.popitem(last=False)

    def require_none(self, key: Hashable, **metadata: object) -> None:
        """Raise :class:`Tombstoned` if the id was released before."""
        if key in self:
            raise Tombstoned(**metadata)

    def expire(self, now: float) -> None:
        """Drop those past their lifetime; cost is that of those dropped."""
        old = []
        for key, until in self.until.items():
            if until > now:
                break
            old.append(key)
        for key in old:
            del self.until[key]

    def __contains__(self, key: Hashable) -> bool:
        return key in self.until

    def __len__(self) -> int:
        return len(self.until)


class TombstonesOf:
    """Those of ids that mean something within ``scope`` alone, in a table of many scopes."""

    def __init__(self, table: Tombstones, scope: Hashable) -> None:
        self._table = table
        self._scope = scope
        # The table's own, which is asked with each call.
        self._until = table.until

    def leave(self, key: Hashable, now: float) -> None:
        """Leave a tombstone; a newer one replaces an older one."""
        self._table.leave((self._scope, key), now)

    def require_none(self, key: Hashable, **metadata: object) -> None:
        """Raise :class:`Tombstoned` if the id was released before."""
        if (self._scope, key) in self._until:
            raise Tombstoned(**metadata)

    def __contains__(self, key: Hashable) -> bool:
        return (self._scope, key) in self._until
