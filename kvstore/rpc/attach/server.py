"""The attach socket's server: one thread that waits for sockets and for deaths."""

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
from kvstore.rpc.lane.connection import Party
from kvstore.rpc.lane.server import HotLanes
from kvstore.service.clock import Clock
from kvstore.service.log_budget import LogBudget
from kvstore.service.processes import Process, Processes
from kvstore.service.store import KVStore
from kvstore.service.tenancy.credentials import Credentials

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

# Three descriptors each, so that the usual limit of 1024 is not reached.
MAX_CONNECTIONS = 256
# Seconds for a peer to say Hello, and to read why it was refused.
PATIENCE = 10.0
# Seconds without accepting after the process ran out of descriptors.
PAUSE = 1.0


class AttachServer:
    """Serves the attach socket at ``path``, from ``start`` to ``close``.

    Everything but these two runs in one thread, which never waits for a peer and
    outlives every exception.
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
        max_connections: int = MAX_CONNECTIONS,
        patience: float = PATIENCE,
    ) -> None:
        """``patience`` is how long a peer may take to say Hello, in seconds.

        ``lanes`` serve the connections that are to be lanes; without them none may be.
        """
        self._path = path
        self._access = access
        self._store = store
        self._credentials = credentials
        self._clock = clock
        self._patience = patience
        self._overflow_uid = overflow_uid()
        self._processes = Processes()
        self._lanes = lanes
        self._connections: ConnectionTable[Connection] = ConnectionTable(max_connections)
        self._by_process: dict[int, Connection] = {}
        # Of those that have yet to say Hello, or were refused.
        self._timers: dict[Connection, Timer] = {}
        self._loop = EventLoop(clock, self._look_around)
        self._lines = LogBudget(clock)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._thread = Thread(target=self._run, name="kvstore-attach", daemon=True)

    @property
    def failure_count(self) -> int:
        """How many exceptions the thread outlived: bugs, each with a line in the log."""
        return self._loop.failure_count

    @property
    def last_tick(self) -> float:
        """When the thread last got round, by the clock."""
        return self._loop.last_tick

    def is_alive(self) -> bool:
        """Returns whether the thread runs."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Listen, and start the thread; once. Replaces a socket file left behind at ``path``.

        The caller MUST hold the file lock beside it: a live server's socket would
        be replaced too. Raises OSError.
        """
        self._path.unlink(missing_ok=True)
        self._listener.bind(str(self._path))
        self._access.apply(self._path)
        self._listener.settimeout(0)
        self._listener.listen()
        self._resume_accepting()
        self._store.announcer.subscribe(self._loop.wake)
        self._thread.start()

    def close(self) -> None:
        """Ends all connections, stop the thread and removes the socket; once, after ``start``."""
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

    # Peers come.

    def _resume_accepting(self) -> None:
        self._loop.watch(self._listener.fileno(), self._accept)

    def _accept(self) -> None:
        try:
            accepted, _ = self._listener.accept()
        except BlockingIOError:
            return
        except OSError as error:
            # Out of descriptors, most likely: look again later instead of at once, for ever.
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
        """Returns the session of a new peer, or why it gets none."""
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
        """Gives a peer some time to say Hello, or to read why it was refused."""
        self._cancel(connection)
        later = partial(self._end_unless_welcome, connection)
        self._timers[connection] = self._loop.at(self._clock() + self._patience, later)

    def _cancel(self, connection: Connection) -> None:
        """Drops a connection's timer, and with it what that keeps of the connection."""
        timer = self._timers.pop(connection, None)
        if timer is not None:
            self._loop.cancel(timer)

    def _end_unless_welcome(self, connection: Connection) -> None:
        self._timers.pop(connection, None)
        if connection in self._connections and not connection.welcomed:
            self._lines.write(log.info, "peer_timed_out")
            self._hang_up(connection)

    # Peers speak.

    def _serve(self, connection: Connection) -> None:
        """Let a connection go on, and look at what came of it."""
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
            # A process whose bind failed is not known to the store.
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
        """Let the lanes' threads serve a connection; it is none of this thread's any more."""
        assert self._lanes is not None  # the session asked them
        self._connections.discard(connection)
        self._cancel(connection)
        self._loop.forget(connection.fileno())
        self._lanes.take(connection.release(), party)

    def _adopt(self, connection: Connection) -> None:
        """Watches the process that a connection bound; its older connection, if any, is over."""
        process = connection.process
        if process is None or self._by_process.get(process.process_id) is connection:
            return
        older = self._by_process.get(process.process_id)
        # Of a lease that ended; what was given under it goes back when the process is dead.
        for bound in [key for key, each in self._by_process.items() if each is connection]:
            del self._by_process[bound]
        self._by_process[process.process_id] = connection
        self._loop.watch(process.pidfd, partial(self._look_at, process))
        if older is not None:
            self._drop(older)

    def _look_around(self) -> None:
        """Hands out extents that are owed now, and ask for those that go away.

        Forgets processes whose leases ended, but for those with memory mapped.
        """
        watched = self._store.watched_process_ids()
        for process in self._processes:
            if process.process_id not in watched:
                self._forget(process)
        for connection in list(self._by_process.values()):
            self._serve(connection)

    # Peers go.

    def _hang_up(self, connection: Connection) -> None:
        """End a connection whose peer hung up or was refused, and look whether its process died."""
        process = connection.process
        self._drop(connection)
        if process is None or process.process_id not in self._processes:
            return
        if self._processes.died(process.process_id):
            self._look_at(process)
        else:
            # Also where the connection broke while it was bound: its death is still to be seen.
            self._loop.watch(process.pidfd, partial(self._look_at, process))
            log.info("process_disconnected", pid=process.pid, lease_id=process.lease_id.hex())
            self._store.disconnected(process.process_id)

    def _look_at(self, process: Process) -> None:
        """Takes note of a process's death, if it is dead; its connection may well be open."""
        if process.process_id not in self._processes or not self._processes.died(
            process.process_id
        ):
            return
        connection = self._by_process.get(process.process_id)
        self._forget(process)
        if connection is not None:
            self._drop(connection)
        log.info("process_died", pid=process.pid, lease_id=process.lease_id.hex())
        self._store.process_died(process.process_id)

    def _forget(self, process: Process) -> None:
        """Drops a process that died, or has neither lease nor memory; its connection is unbound."""
        connection = self._by_process.pop(process.process_id, None)
        if connection is not None:
            connection.unbind()
        self._loop.forget(process.pidfd)
        self._processes.forget(process.process_id)
        if self._lanes is not None:
            self._lanes.end(process.process_id)

    def _drop(self, connection: Connection) -> None:
        """Closes a connection, whatever becomes of its process."""
        self._connections.discard(connection)
        self._cancel(connection)
        process = connection.process
        if process is not None and self._by_process.get(process.process_id) is connection:
            del self._by_process[process.process_id]
        self._loop.forget(connection.fileno())
        connection.close()
