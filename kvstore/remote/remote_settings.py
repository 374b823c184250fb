"""The settings of a remote store: times, memory and threads."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class RemoteSettings:
    """The limits of a :class:`~kvstore.remote.remote_store.RemoteStore`.

    ``RemoteStore(engine, *, secret: bytes, state_folder: Path, clock: Clock, settings:
    RemoteSettings)`` takes them. It closes the engine with itself.
    """

    timeout_seconds: float = 0.3
    """A look, or another short call, waits at most so long."""
    read_seconds: float = 2.0
    """A read of pages waits at most so long, with its time in the queue."""
    write_seconds: float = 5.0
    """A write that waited for longer is dropped, and one under way ends after as long."""
    ttl_seconds: float = 86400.0
    """Pages live so long after their last use, and ten minutes more at most."""
    queue_bytes: int = 256 << 20
    """Pages that wait to be written, at most half of it for one namespace."""
    reading_bytes: int = 256 << 20
    """Pages being read."""
    canary_bytes: int = 1 << 20
    """The probe of an engine that was away writes and reads so much: give the page size."""
    read_threads: int = 2
    write_threads: int = 2
    """While one seals pages, the other one sends some."""
    look_threads: int = 4
    """Looks that the callers make at a time."""
    removal_threads: int = 4
    """Removals that are carried out at a time."""
    writes: bool = True
    """Pages are written, and not only read."""

    @property
    def clock_seconds(self) -> float:
        """A read of the engine's clock waits at most so long. No request waits for it."""
        return max(self.timeout_seconds, self.read_seconds)

    @property
    def connection_count(self) -> int:
        """Connections that the engine should have: one for each thread that may call it."""
        # The others are those of the threads that write pages and refresh named pins, and of two
        # operators, which ask whether pages are there, of upkeep and of the removals of other
        # hosts. The probe works while none of them does.
        transfers = self.look_threads + self.read_threads + self.write_threads
        return transfers + self.removal_threads + 6
