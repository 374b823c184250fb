"""Tombstones: ids that were released, under which a call that comes late fails."""

from kvstore.errors import Tombstoned


class Tally:
    """A count that several tables share."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


class Tombstones:
    """Ids that were released, kept for longer than any call can be under way.

    ``tally`` counts them together with those of other tables.
    """

    def __init__(self, lifetime: float, tally: Tally | None = None) -> None:
        self._lifetime = lifetime
        self._tally = Tally() if tally is None else tally
        self._until: dict[object, float] = {}

    def leave(self, key: object, now: float) -> None:
        """Leave a tombstone; a newer one replaces an older one."""
        before = len(self._until)
        self._until.pop(key, None)
        self._until[key] = now + self._lifetime
        self._tally.count += len(self._until) - before

    def require_none(self, key: object, **metadata: object) -> None:
        """Raise :class:`Tombstoned` if the id was released before."""
        if key in self._until:
            raise Tombstoned(**metadata)

    def expire(self, now: float) -> None:
        """Drop those past their lifetime; cost is that of those dropped."""
        old = []
        for key, until in self._until.items():
            if until > now:
                break
            old.append(key)
        for key in old:
            del self._until[key]
        self._tally.count -= len(old)

    def clear(self) -> None:
        """Drop all."""
        self._tally.count -= len(self._until)
        self._until.clear()

    def __contains__(self, key: object) -> bool:
        return key in self._until

    def __len__(self) -> int:
        return len(self._until)
