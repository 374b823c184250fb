"""The nodes of a cluster and their slots, kept current by a thread."""

from collections.abc import Callable, Sequence
from threading import Condition, Thread
from time import monotonic
from typing import Final

from kvstore.remote.connection_pool import CLOSE_SECONDS, ConnectionPool
from kvstore.remote.errors import (
    ClusterDown,
    EngineClosed,
    EngineUnreachable,
    RemoteError,
    WrongNode,
)
from kvstore.remote.secret.names import SLOT_COUNT
from kvstore.remote.valkey.address import EngineAddress
from kvstore.remote.valkey.cluster.cluster_node import ClusterNode
from kvstore.remote.valkey.cluster.cluster_slots import (
    MOST_PARTS,
    UnusableSlots,
    moved_slot,
    parsed_slots,
)
from kvstore.remote.valkey.connector import ValkeyConnector
from kvstore.remote.valkey.resp import RespConnection, encoded

# A cluster that moves slots says so by MOVED, so it is read seldom while all nodes answer.
QUIET_SECONDS: Final = 10.0
UNREST_SECONDS: Final = 0.2


class ClusterMap:
    """A map of slots to nodes. Thread-safe.

    Its thread reads CLUSTER SLOTS: at first from the seeds, every ten seconds, and five times a
    second from an error of a node until all nodes answer. It also probes nodes that are away.
    """

    def __init__(
        self,
        seeds: Sequence[EngineAddress],
        connector: ValkeyConnector,
        make_pool: Callable[[EngineAddress], ConnectionPool[RespConnection]],
    ) -> None:
        self._seeds = list(seeds)
        self._connector = connector
        self._make_pool = make_pool
        self._changed = Condition()
        self._nodes: dict[EngineAddress, ClusterNode] = {}
        self._owners: list[EngineAddress | None] = [None] * SLOT_COUNT
        self._error: RemoteError | None = None
        self._readings = 0
        self._start = monotonic()
        self._is_wanted = self._is_restless = self._is_closed = False
        self._thread = Thread(target=self._keep_current, name="kv-remote-cluster", daemon=True)
        self._thread.start()

    def require_known(self, deadline: float, *, insist: bool = False) -> None:
        """Waits for the first reading, or with ``insist`` for another one that succeeds.

        Raises the last reading's error at once if none has succeeded.
        """
        with self._changed:
            if insist and not self._nodes:
                self._want()
                readings = self._readings
                self._changed.wait_for(
                    lambda: self._is_closed or self._nodes or self._readings > readings,
                    max(deadline - monotonic(), 0),
                )
            end = min(deadline, self._start + self._connector.seconds)
            self._changed.wait_for(
                lambda: self._is_closed or self._nodes or self._error is not None,
                max(end - monotonic(), 0),
            )
            if self._is_closed:
                raise EngineClosed("the engine was closed")
            if not self._nodes:
                error = self._error or EngineUnreachable("no node of the cluster answered yet")
                raise type(error)(str(error))

    def owner(self, slot: int) -> ClusterNode | None:
        """Returns the node that has a slot, or None if no node has it."""
        with self._changed:
            address = self._owners[slot]
            return None if address is None else self._nodes.get(address)

    def nodes(self) -> list[ClusterNode]:
        """Returns the primaries."""
        with self._changed:
            return list(self._nodes.values())

    def note_moved(self, error: WrongNode, node: ClusterNode) -> None:
        """Learns from a MOVED error where a slot is. Reads the slots again, whatever it says."""
        with self._changed:
            moved = moved_slot(str(error), node.address)
            if moved is not None:
                slot, address = moved
                self._add(address)
                self._owners[slot] = address
            self._want()

    def note_error(self) -> None:
        """Reads the slots again soon: a replica may have become the primary."""
        with self._changed:
            self._want()

    def close(self) -> None:
        """Closes all nodes. Waits a second at most for the thread."""
        with self._changed:
            self._is_closed = True
            nodes = list(self._nodes.values())
            self._changed.notify_all()
        for node in nodes:
            node.close()
        self._thread.join(CLOSE_SECONDS)

    def _want(self) -> None:
        self._is_wanted = True
        self._changed.notify_all()

    def _add(self, address: EngineAddress) -> None:
        if address not in self._nodes and not self._is_closed:
            self._nodes[address] = ClusterNode(address, self._make_pool(address))

    def _keep_current(self) -> None:
        while True:
            with self._changed:
                pause = UNREST_SECONDS if self._is_restless else QUIET_SECONDS
                if self._readings:
                    self._changed.wait_for(lambda: self._is_closed or self._is_wanted, pause)
                if self._is_closed:
                    return
                self._is_wanted = False
            is_read = self._read()
            is_well = sum(not self._is_well(node) for node in self.nodes()) == 0
            with self._changed:
                self._is_restless = not (is_read and is_well and all(self._owners))
                self._readings += 1
                self._changed.notify_all()
                # An error of each call must not make a reading of each call.
                self._changed.wait_for(lambda: self._is_closed, UNREST_SECONDS)

    def _read(self) -> bool:
        """Reads the slots from the first node that answers; returns whether one did."""
        away = {node.address for node in self.nodes() if node.is_away}
        known = [node.address for node in self.nodes()]
        candidates = dict.fromkeys([*known, *self._seeds])
        refused: RemoteError | None = None
        for address in sorted(candidates, key=lambda each: each in away):
            try:
                self._install(self._slots(address))
            except RemoteError as error:
                refused = error
            except UnusableSlots as error:
                refused = ClusterDown(str(error))
            else:
                return True
        with self._changed:
            self._error = refused
        return False

    def _slots(self, address: EngineAddress) -> list[EngineAddress | None]:
        connection = self._connector.connect(address)
        try:
            connection.send(encoded(b"CLUSTER", b"SLOTS"))
            return parsed_slots(connection.reply(MOST_PARTS), address)
        finally:
            connection.close()

    def _install(self, owners: list[EngineAddress | None]) -> None:
        """Takes new owners of the slots, and closes nodes that have none by now."""
        primaries = {each for each in owners if each is not None}
        if not primaries:
            raise ClusterDown("no slot of the cluster has a node")
        with self._changed:
            for address in primaries:
                self._add(address)
            gone = [self._nodes.pop(each) for each in self._nodes.keys() - primaries]
            self._owners = owners
            self._error = None
            # Replicas that became primaries are seeds of the next reading, as their primaries were.
            self._seeds = list(dict.fromkeys([*self._seeds, *primaries]))[-64:]
            self._changed.notify_all()
        for node in gone:
            node.close()

    def _is_well(self, node: ClusterNode) -> bool:
        """Returns whether a node that failed takes a connection now, and answers on it."""
        if not node.needs_probe:
            return True
        try:
            node.probe(self._connector.seconds)
        except RemoteError:
            return False
        return True
