"""The attach socket's server: one thread waits for sockets, and for the deaths of processes."""

import selectors
import socket
from functools import partial
from pathlib import Path
from threading import Thread

import structlog

from kvstore.errors import PeerRefused, QuotaExceeded
from kvstore.rpc.attach.connection import Connection
from kvstore.rpc.attach.event_loop import EventLoop, Timer
from kvstore.rpc.attach.peer import identify, overflow_uid
from kvstore.rpc.attach.session import AttachSession
from kvstore.rpc.attach.table import ConnectionTable, SocketAccess
from kvstore.rpc.lane import HotLanes, Party
from kvstore.service.attached_processes import Process, Processes
from kvstore.service.clock import Clock
from kvstore.service.log_budget import LogBudget
from kvstore.service.store import KVStore
from kvstore.service.tenancy.credentials import Credentials

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

# Each takes three descriptors, so that the usual limit of 1024 is not reached.
MAX_CONNECTIONS = 256
# Seconds for a peer to say Hello, and to read its refusal.
PATIENCE = 10.0
# Seconds until the server accepts again after the process ran out of descriptors.
PAUSE = 1.0


def new_listener() -> socket.socket:
    """Returns a socket for ``listen_at``."""
    return socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)


def listen_at(path: Path, access: SocketAccess, listener: socket.socket) -> None:
    """Listens at a path, and replaces a socket file left behind there.

    The caller MUST hold the file lock beside it, because the socket of a live server would be
    replaced too. Peers that connect wait until a server accepts them. Raises OSError.
    """
    path.unlink(missing_ok=True)
    listener.bind(str(path))
    access.apply(path)
    listener.settimeout(0)
    listener.listen()


class AttachServer:
    """Serves the attach socket at ``path``, from ``start`` to ``close``.

    All else runs in one thread, which never waits for a peer and outlives every exception.
    """

    def __init__(
        self,
        path: Path,
        *,
        store: KVStore,
        credentials: Credentials,
        clock: Clock,
        access: SocketAccess = SocketAccess(),  # noqa: B008 - it is immutable
        lanes: HotLanes | None = None,
        processes: Processes | None = None,
        max_connections: int = MAX_CONNECTIONS,
        patience: float = PATIENCE,
    ) -> None:
        """A peer has ``patience`` seconds to say Hello.

        ``lanes`` serve the connections that become lanes. Without it none may become one.
        ``processes`` are those of the server before this one, if it left any.
        """
        self._path = path
        self._access = access
        self._store = store
        self._credentials = credentials
        self._clock = clock
        self._patience = patience
        self._overflow_uid = overflow_uid()
        self._processes = Processes() if processes is None else processes
        self._lanes = lanes
        self._connections: ConnectionTable[Connection] = ConnectionTable(max_connections)
        self._by_process: dict[int, Connection] = {}
        # Those of peers that have not said Hello yet, or were refused.
        self._timers: dict[Connection, Timer] = {}
        self._loop = EventLoop(clock, self._look_around)
        self._lines = LogBudget(clock)
        self._listener = new_listener()
        self._thread = Thread(target=self._run, name="kvstore-attach", daemon=True)

    @property
    def failure_count(self) -> int:
        """The number of exceptions that the thread outlived. Each is a bug, and in the log."""
        return self._loop.failure_count

    @property
    def last_tick(self) -> float:
        """The time of the thread's last round, by the clock."""
        return self._loop.last_tick

    def is_alive(self) -> bool:
        """Returns whether the thread runs."""
        return self._thread.is_alive()

    def start(self, listener: socket.socket | None = None) -> None:
        """Listens as ``listen_at`` does, and starts the thread; once.

        A ``listener`` does so already, and is the server's from now on.
        """
        if listener is None:
            listen_at(self._path, self._access, self._listener)
        else:
            self._listener.close()
            self._listener = listener
        for each in self._processes:
            # Those of the server before this one. Some may have died meanwhile.
            self._loop.watch(each.pidfd, partial(self._look_at, each))
            self._look_at(each)
        self._resume_accepting()
        self._store.announcer.subscribe(self._loop.wake)
        self._thread.start()

    def close(self) -> None:
        """Ends all connections, stops the thread and removes the socket; once, after ``start``."""
        self._store.announcer.unsubscribe(self._loop.wake)
        self._loop.stop()
        self._thread.join()
        self._path.unlink(missing_ok=True)

    def _run(self) -> None:
        self._loop.run()
        for connection in self._connections:
            self._drop(connection)
        self._processes.close()
        self._listener.close()
        self._loop.close()

    # Peers that connect.

    def _resume_accepting(self) -> None:
        self._loop.watch(self._listener.fileno(), self._accept)

    def _accept(self) -> None:
        try:
            accepted, _ = self._listener.accept()
        except BlockingIOError:
            return
        except OSError as error:
            # Most likely out of descriptors: without a pause this would repeat at once, for ever.
            log.warning("accept_failed", why=str(error))
            self._loop.forget(self._listener.fileno())
            self._loop.at(self._clock() + PAUSE, self._resume_accepting)
            return
        accepted.settimeout(0)
        party = self._admit(accepted)
        uid = party.uid if isinstance(party, AttachSession) else None
        longest = self._store.limits.max_short_message_bytes
        connection = Connection(accepted, party, max_frame_bytes=longest)
        silent = self._connections.too_silent(uid)
        if silent is not None:
            self._lines.write(log.info, "silent_peer_ended", uid=uid)
            self._hang_up(silent)
        try:
            self._connections.add(connection, uid)
        except QuotaExceeded as error:
            connection.turn_away(error)
            connection.close()
            return
        self._end_in_time(connection)
        self._loop.watch(connection.fileno(), partial(self._serve, connection))

    def _admit(self, accepted: socket.socket) -> AttachSession | PeerRefused:
        """Returns the session of a new peer, or the error that refuses it."""
        try:
            peer = identify(accepted, overflow=self._overflow_uid)
        except PeerRefused as error:
            return error
        return AttachSession(
            peer,
            store=self._store,
            credentials=self._credentials,
            processes=self._processes,
            lanes=self._lanes,
        )

    def _end_in_time(self, connection: Connection) -> None:
        """Ends a connection after a while, unless its peer says Hello."""
        self._cancel(connection)
        later = partial(self._end_unless_welcome, connection)
        self._timers[connection] = self._loop.at(self._clock() + self._patience, later)

    def _cancel(self, connection: Connection) -> None:
        """Drops a connection's timer, which would keep the connection in memory."""
        timer = self._timers.pop(connection, None)
        if timer is not None:
            self._loop.cancel(timer)

    def _end_unless_welcome(self, connection: Connection) -> None:
        self._timers.pop(connection, None)
        if connection in self._connections and not connection.welcomed:
            self._lines.write(log.info, "peer_timed_out")
            self._hang_up(connection)

    # Peers that send frames.

    def _serve(self, connection: Connection) -> None:
        """Advances a connection, and acts on its new state."""
        if connection not in self._connections:
            return
        try:
            refusal = connection.advance()
        except (EOFError, OSError):
            self._hang_up(connection)
            return
        except Exception:
            self._hang_up(connection)
            raise
        if refusal is not None:
            reason = refusal.reason()
            self._lines.write(log.warning, "peer_refused", reason=reason, **refusal.metadata)
            self._end_in_time(connection)
            # The store does not know a process whose bind failed.
            self._loop.wake()
        if connection.finished:
            self._hang_up(connection)
            return
        if connection.lane_of is not None:
            self._hand_over(connection, connection.lane_of)
            return
        if connection.welcomed:
            self._connections.welcome(connection)
        self._adopt(connection)
        events = selectors.EVENT_WRITE if connection.must_write else selectors.EVENT_READ
        self._loop.watch(connection.fileno(), partial(self._serve, connection), events)

    def _hand_over(self, connection: Connection, party: Party) -> None:
        """Gives a connection to the lanes' threads; this thread has it no more."""
        assert self._lanes is not None  # the session asked it
        self._connections.discard(connection)
        self._cancel(connection)
        self._loop.forget(connection.fileno())
        self._lanes.take(connection.release(), party)

    def _adopt(self, connection: Connection) -> None:
        """Watches the process that a connection bound, and drops its older connection, if any."""
        process = connection.process
        if process is None or self._by_process.get(process.process_id) is connection:
            return
        older = self._by_process.get(process.process_id)
        # It was bound under a lease that ended. The death of that process returns its memory.
        for bound in [key for key, each in self._by_process.items() if each is connection]:
            del self._by_process[bound]
        self._by_process[process.process_id] = connection
        self._loop.watch(process.pidfd, partial(self._look_at, process))
        if older is not None:
            self._drop(older)

    def _look_around(self) -> None:
        """Announces extents to map and extents to unmap.

        Forgets processes whose leases ended, except those that still map memory.
        """
        watched = self._store.watched_process_ids()
        for process in self._processes:
            if process.process_id not in watched:
                self._forget(process)
        for connection in list(self._by_process.values()):
            self._serve(connection)

    # Peers that leave or die.

    def _hang_up(self, connection: Connection) -> None:
        """Ends a connection whose peer hung up or was refused, and checks if its process died."""
        process = connection.process
        self._drop(connection)
        if process is None or process.process_id not in self._processes:
            return
        if self._processes.died(process.process_id):
            self._look_at(process)
        else:
            # The connection may have broken while it was bound: its death has still to be seen.
            self._loop.watch(process.pidfd, partial(self._look_at, process))
            log.info("process_disconnected", pid=process.pid, lease_id=process.lease_id.hex())
            self._store.disconnected(process.process_id)

    def _look_at(self, process: Process) -> None:
        """Tells the store that a process died, if it did. Its connection may still be open."""
        if process.process_id not in self._processes or not self._processes.died(
            process.process_id
        ):
            return
        connection = self._by_process.get(process.process_id)
        log.info("process_died", pid=process.pid, lease_id=process.lease_id.hex())
        try:
            self._store.process_died(process.process_id)
        finally:
            # Only now: a later server needs the pidfd of each process that is written down.
            self._forget(process)
            if connection is not None:
                self._drop(connection)

    def _forget(self, process: Process) -> None:
        """Drops a process that died or has neither lease nor memory; unbinds its connection."""
        connection = self._by_process.pop(process.process_id, None)
        if connection is not None:
            connection.unbind()
        self._loop.forget(process.pidfd)
        self._processes.forget(process.process_id)
        if self._lanes is not None:
            self._lanes.end(process.process_id)

    def _drop(self, connection: Connection) -> None:
        """Closes a connection. Its process may live on."""
        self._connections.discard(connection)
        self._cancel(connection)
        process = connection.process
        if process is not None and self._by_process.get(process.process_id) is connection:
            del self._by_process[process.process_id]
        self._loop.forget(connection.fileno())
        connection.close()
