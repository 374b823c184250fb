"""The connections of a socket: how many there may be, and whose they are."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

from kvstore.errors import QuotaExceeded

OWNER_MODE = 0o600
GROUP_MODE = 0o660
UNCHANGED = -1


class SocketAccess(NamedTuple):
    """The owner alone may connect, or with ``group_id`` that group's members too."""

    group_id: int | None = None

    def apply(self, path: Path) -> None:
        """Gives a socket its group and mode; raises OSError."""
        if self.group_id is None:
            path.chmod(OWNER_MODE)
            return
        os.chown(path, UNCHANGED, self.group_id)
        path.chmod(GROUP_MODE)


T = TypeVar("T")


class ConnectionTable(Generic[T]):
    """Open connections by uid. Used by one thread alone, or guarded by who uses it.

    A uid may have another one while it has less than three times as many as there is
    room left for: alone three quarters of ``maximum``, and however many uids take what
    they can, the next one finds room. Of those that have yet to say Hello it has at
    most a quarter: they shut out nobody at all. A peer whom nobody knows has the uid
    None. ``name`` is what is too many, in errors.
    """

    def __init__(self, maximum: int, name: str = "attach_connections") -> None:
        self._maximum = maximum
        self._name = name
        self.most_of_a_uid = max(maximum * 3 // 4, 1)
        self.most_silent = max(maximum // 4, 1)
        self._uids: dict[T, int | None] = {}
        self._counts: dict[int | None, int] = {}
        # By uid, the oldest first.
        self._silent: dict[int | None, dict[T, None]] = {}

    def __contains__(self, connection: T) -> bool:
        return connection in self._uids

    def __iter__(self) -> Iterator[T]:
        return iter(list(self._uids))

    def __len__(self) -> int:
        return len(self._uids)

    def too_silent(self, uid: int | None) -> T | None:
        """Returns the connection of a uid that is to go before another may come, if any."""
        silent = self._silent.get(uid, {})
        return next(iter(silent)) if len(silent) >= self.most_silent else None

    def require_room(self, uid: int | None) -> None:
        """Raises QuotaExceeded where another connection of a uid would be one too many."""
        count, room = self._counts.get(uid, 0), self._maximum - len(self._uids)
        if count >= min(self.most_of_a_uid, 3 * room) > 0:
            raise QuotaExceeded(quota=f"{self._name}_of_uid", maximum=self.most_of_a_uid)
        if room == 0:
            raise QuotaExceeded(quota=self._name, maximum=self._maximum)

    def add(self, connection: T, uid: int | None) -> None:
        """Takes a connection in, which is yet to speak; raises QuotaExceeded."""
        self.require_room(uid)
        self._uids[connection] = uid
        self._counts[uid] = self._counts.get(uid, 0) + 1
        self._silent.setdefault(uid, {})[connection] = None

    def welcome(self, connection: T) -> None:
        """Notes that a connection said Hello."""
        uid = self._uids[connection]
        silent = self._silent.get(uid)
        if silent is not None:
            silent.pop(connection, None)
            if not silent:
                del self._silent[uid]

    def discard(self, connection: T) -> None:
        """Forgets a connection, if it is there."""
        if connection not in self._uids:
            return
        self.welcome(connection)
        uid = self._uids.pop(connection)
        self._counts[uid] -= 1
        if not self._counts[uid]:
            del self._counts[uid]
