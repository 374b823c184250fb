"""The connections of a socket, with bounds for each uid."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

from kvstore.errors import QuotaExceeded

OWNER_MODE = 0o600
GROUP_MODE = 0o660
UNCHANGED = -1


class SocketAccess(NamedTuple):
    """Lets the owner connect, and with ``group_id`` that group's members too."""

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
    """Open connections by uid. For one thread, or under its user's mutex.

    A uid may open another connection while it has less than three times as many as room is left
    for. Alone it gets three quarters of ``maximum``, and there is always room for the next uid. At
    most a quarter of ``maximum`` are a uid's connections without a Hello, so that they shut out
    nobody. An unknown peer has the uid None. Errors say ``name`` for what is too many.
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
        """Returns the connection of a uid that has to end before it may open another, if any."""
        silent = self._silent.get(uid, {})
        return next(iter(silent)) if len(silent) >= self.most_silent else None

    def require_room(self, uid: int | None) -> None:
        """Raises QuotaExceeded if another connection of a uid would be one too many."""
        count, room = self._counts.get(uid, 0), self._maximum - len(self._uids)
        if count >= min(self.most_of_a_uid, 3 * room) > 0:
            raise QuotaExceeded(quota=f"{self._name}_of_uid", maximum=self.most_of_a_uid)
        if room == 0:
            raise QuotaExceeded(quota=self._name, maximum=self._maximum)

    def add(self, connection: T, uid: int | None) -> None:
        """Adds a connection that has not said Hello yet; raises QuotaExceeded."""
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
