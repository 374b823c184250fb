"""The interface of a remote engine: a shared store of bytes under names, such as Valkey.

An engine knows nothing of pages, tenants or seals. Its calls block, and any thread may make
them. A call gets one absolute deadline, in seconds of ``time.monotonic``, that bounds everything
it does: waiting for a connection, sending, and receiving. It raises a
:class:`~kvstore.remote.errors.RemoteError`, and ValueError only for lives that are not positive.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple, Protocol

from kvstore.remote.errors import RemoteError
from kvstore.remote.finding import EngineFinding

MOST_CONTROL_BYTES: Final = 64


@dataclass(frozen=True, kw_only=True)
class EngineCapabilities:
    """The abilities of an engine, which the caller's plans depend on."""

    exists_in_one_trip: bool
    """``exists_many`` takes one or two round trips, however many names it gets."""
    expires: bool
    """A value can have a time to live. Without it, the lives of ``put_many`` have no effect."""
    revisions: bool
    """The engine has control values: ``control`` and ``set_control`` work, and removals can be
    shared. Its settings have to spare them from eviction."""
    lists: bool
    """The engine can list the names of a namespace."""
    most_bytes: int
    """The longest value that the engine takes."""
    best_bytes: int
    """Below this size of a value, requests cost more than bytes."""
    registered_memory: bool
    """The engine reads into and writes from memory that was registered with it before."""
    keeps_deadlines: bool
    """A call ends at its deadline. Calls of other engines need a helper, and memory of its own."""


class ReadResult(Enum):
    """The fate of one value of ``get_many``."""

    READ = "read"
    """The buffer has the value."""
    MISSING = "missing"
    """The engine has no such value."""
    WRONG_SIZE = "wrong_size"
    """The engine has a value of another length. The buffer's content is undefined."""
    AWAY = "away"
    """The node that may have the value does not answer, and other nodes do. The buffer's content
    is undefined."""


class EngineNodes(NamedTuple):
    """The nodes of an engine at one moment. An engine of one server has one, which is never away.

    ``away`` has the addresses of the nodes that calls do not reach at present. ``changes`` grows
    when a node answers again, or another one takes over its names: its values may be older ones.
    """

    total: int = 1
    away: tuple[str, ...] = ()
    changes: int = 0


def require_lives(lives_ms: Sequence[int]) -> None:
    """Raises ValueError unless all lives are positive: another one would delete a value."""
    if min(lives_ms, default=1) <= 0:
        raise ValueError(f"a life of {min(lives_ms)} ms is not positive")


class RemoteEngine(Protocol):
    """A store of bytes that hosts share.

    ``get_many`` and ``put_many`` return iterators that do the work while the caller iterates, so
    results before an error count. Until such an iterator ends, its buffers belong to the engine.
    It ends by its last result, by an error or by ``close``. A caller that stops early loses the
    connection under it.

    An engine of several nodes loses one node's names alone while any other node answers. Those
    names are absent in ``exists_many`` and AWAY in ``get_many``. They have the error ``NodeAway``
    in ``put_many``, and ``control`` and ``set_control`` raise it. ``delete_many`` and
    ``refresh_many`` serve the other nodes before they raise it. If no node answers, calls raise an
    error whose reaction is AWAY.
    """

    @property
    def capabilities(self) -> EngineCapabilities:
        """The abilities of this engine."""
        ...

    def exists_many(self, names: Sequence[bytes], deadline: float) -> list[bool]:
        """Returns for each name whether the engine has a value. Changes no expiry."""
        ...

    def get_many(
        self, names: Sequence[bytes], into: Sequence[memoryview], deadline: float
    ) -> Iterator[ReadResult]:
        """Reads values into buffers of their exact lengths; yields a result for each, in order.

        No byte beyond a buffer's length is received for it, whatever length the engine states.
        """
        ...

    def put_many(
        self,
        names: Sequence[bytes],
        values: Sequence[memoryview],
        lives_ms: Sequence[int],
        deadline: float,
    ) -> Iterator[RemoteError | None]:
        """Writes values; yields None for each one written, or the error that refused it alone.

        ``lives_ms`` are the values' times to live, positive. The engine expires values in the
        order of their lives, to the millisecond, if one call writes them. It counts by its own
        clock, so a host with a wrong clock expires nothing of others.
        """
        ...

    def refresh_many(
        self, names: Sequence[bytes], lives_ms: Sequence[int], deadline: float
    ) -> None:
        """Extends the lives of values, and shortens none. A missing value is no error.

        It needs the rights of a write, which a read does not.
        """
        ...

    def control(self, name: bytes, deadline: float) -> bytes | None:
        """Returns a control value of at most ``MOST_CONTROL_BYTES``, or None without one.

        Sees every control value whose ``set_control`` returned before, by any host.
        """
        ...

    def set_control(
        self, name: bytes, value: bytes, life_ms: int, deadline: float, *, only_if_absent: bool
    ) -> bool:
        """Writes a control value. Returns False if there is one and it was to be absent.

        An error leaves open whether the value was written. Raises ``ReplicasMissing`` if fewer
        replicas have it than the engine was told to wait for.
        """
        ...

    def delete_many(self, names: Sequence[bytes], deadline: float) -> None:
        """Deletes values. A name without a value is no error."""
        ...

    def time_ms(self, deadline: float) -> int:
        """Returns the engine's clock, in milliseconds since 1970."""
        ...

    def nodes(self) -> EngineNodes:
        """Returns the state of the nodes, by the calls and probes before. Calls nobody."""
        ...

    def ping(self, deadline: float) -> None:
        """Returns if the engine answers. Makes a connection first if none exists."""
        ...

    def findings(self, deadline: float) -> list[EngineFinding]:
        """Returns the settings of the engine that cost hits or promises, as far as it tells them.

        Raises only if the engine does not answer.
        """
        ...

    def close(self) -> None:
        """Ends all connections and threads. Later calls raise ``EngineClosed``."""
        ...
