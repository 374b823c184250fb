"""The connections of the attach socket: how many there may be, and whose they are."""

from collections.abc import Iterator

from kvstore.errors import QuotaExceeded
from kvstore.rpc.attach_connection import Connection


class ConnectionTable:
    """Open connections by uid. Used by the attach server's thread alone.

    A uid may have another one while it has less than three times as many as there is
    room left for: alone three quarters of ``maximum``, and however many uids take what
    they can, the next one finds room. Of those that have yet to say Hello it has at
    most a quarter: they shut out nobody at all. A peer whom nobody knows has the uid
    None.
    """

    def __init__(self, maximum: int) -> None:
        self._maximum = maximum
        self.most_of_a_uid = max(maximum * 3 // 4, 1)
        self.most_silent = max(maximum // 4, 1)
        self._uids: dict[Connection, int | None] = {}
        self._counts: dict[int | None, int] = {}
        # By uid, the oldest first.
        self._silent: dict[int | None, dict[Connection, None]] = {}

    def __contains__(self, connection: Connection) -> bool:
        return connection in self._uids

    def __iter__(self) -> Iterator[Connection]:
        return iter(list(self._uids))

    def __len__(self) -> int:
        return len(self._uids)

    def too_silent(self, uid: int | None) -> Connection | None:
        """Return the connection of a uid that is to go before another may come, if any."""
        silent = self._silent.get(uid, {})
        return next(iter(silent)) if len(silent) >= self.most_silent else None

    def add(self, connection: Connection, uid: int | None) -> None:
        """Take a connection in, which is yet to speak; raises QuotaExceeded."""
        count, room = self._counts.get(uid, 0), self._maximum - len(self._uids)
        if count >= min(self.most_of_a_uid, 3 * room) > 0:
            raise QuotaExceeded(quota="attach_connections_of_uid", maximum=self.most_of_a_uid)
        if room == 0:
            raise QuotaExceeded(quota="attach_connections", maximum=self._maximum)
        self._uids[connection] = uid
        self._counts[uid] = self._counts.get(uid, 0) + 1
        self._silent.setdefault(uid, {})[connection] = None

    def welcome(self, connection: Connection) -> None:
        """Note that a connection said Hello."""
        uid = self._uids[connection]
        silent = self._silent.get(uid)
        if silent is not None:
            silent.pop(connection, None)
            if not silent:
                del self._silent[uid]

    def discard(self, connection: Connection) -> None:
        """Forget a connection, if it is there."""
        if connection not in self._uids:
            return
        self.welcome(connection)
        uid = self._uids.pop(connection)
        self._counts[uid] -= 1
        if not self._counts[uid]:
            del self._counts[uid]
