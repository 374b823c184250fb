"""The nodes of a cluster and their slots, kept current by a thread."""

import os
from collections.abc import Callable, Sequence
from threading import Condition, Thread
from time import monotonic
from typing import Final

from kvstore.remote.connection_pool import CLOSE_SECONDS, ConnectionPool
from kvstore.remote.engine import EngineNodes
from kvstore.remote.errors import (
    ClusterDown,
    EngineClosed,
    EngineUnreachable,
    NodeAway,
    Reaction,
    RemoteError,
    ReplyMalformed,
    WrongNode,
)
from kvstore.remote.secret.names import SLOT_COUNT
from kvstore.remote.valkey.address import EngineAddress
from kvstore.remote.valkey.cluster.cluster_node import ClusterNode
from kvstore.remote.valkey.cluster.cluster_slots import (
    MOST_PARTS,
    UnusableSlots,
    parsed_slots,
    redirection,
    slot_of_name,
)
from kvstore.remote.valkey.connector import ValkeyConnector
from kvstore.remote.valkey.resp import RespConnection, encoded

# A cluster that moves slots says so by MOVED, so it is read seldom while all nodes answer.
QUIET_SECONDS: Final = 10.0
UNREST_SECONDS: Final = 0.2
# A node may have no slot but one that moves to it, and it is kept so long after the last call.
ASKED_SECONDS: Final = 60.0
# A node of a cluster of 64 has the slot of one name in so many with near certainty.
MOST_CANARIES: Final = 1024


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
        *,
        usual_seconds: float,
    ) -> None:
        self._seeds = list(seeds)
        self._usual_seconds = usual_seconds
        self._connector = connector
        self._make_pool = make_pool
        self._changed = Condition()
        self._nodes: dict[EngineAddress, ClusterNode] = {}
        self._asked: dict[EngineAddress, float] = {}
        self._changes = 0
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

    def states(self) -> EngineNodes:
        """Returns the state of the primaries."""
        nodes = self.nodes()
        away = sorted(each.name for each in nodes if each.is_away or not each.answers)
        return EngineNodes(len(nodes), tuple(away), self._changes)

    def blame(self, error: RemoteError) -> RemoteError:
        """Returns the error of a node as one of the node alone, if another node answers.

        A node whose reply is malformed is not away.
        """
        if error.reaction is not Reaction.AWAY or isinstance(error, EngineClosed | ReplyMalformed):
            return error
        if any(each.answers and not each.is_away for each in self.nodes()):
            return NodeAway(str(error))
        return error

    def note_redirection(self, error: WrongNode, node: ClusterNode) -> ClusterNode | None:
        """Learns from a MOVED error where a slot is, and reads all slots again.

        Returns the node of an ASK error: it has one name, and not yet the slot.
        """
        with self._changed:
            found = redirection(str(error), node.address)
            if found is not None:
                self._add(found.address)
                if found.is_ask:
                    self._asked[found.address] = monotonic()
                    return self._nodes.get(found.address)
                self._own(found.slot, found.address)
            self._want()
        return None

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
            self._nodes[address] = ClusterNode(
                address,
                self._make_pool(address),
                usual_seconds=self._usual_seconds,
                returned=self._note_change,
            )

    def _own(self, slot: int, address: EngineAddress) -> None:
        if self._owners[slot] != address:
            self._owners[slot] = address
            self._note_change()

    def _note_change(self) -> None:
        self._changes += 1

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
        known = {node.address: node for node in self.nodes()}
        failed = {address for address, node in known.items() if node.is_away or not node.answers}
        candidates = dict.fromkeys([*known, *self._seeds])
        refused: RemoteError | None = None
        for address in sorted(candidates, key=lambda each: each in failed):
            try:
                self._install(self._slots(address))
            except RemoteError as error:
                refused = error
                if address in known and error.reaction is Reaction.AWAY:
                    known[address].note_silence()
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
            oldest = monotonic() - ASKED_SECONDS
            self._asked = {at: last for at, last in self._asked.items() if last > oldest}
            unused = self._nodes.keys() - primaries - self._asked.keys()
            gone = [self._nodes.pop(each) for each in unused]
            # At the first reading no slot had another owner.
            self._changes += any(self._owners) and owners != self._owners
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
        if not node.is_due():
            return False
        try:
            node.probe(self._connector.seconds, lambda: self._canary(node))
        except RemoteError:
            return False
        return True

    def _canary(self, node: ClusterNode) -> bytes | None:
        """Returns a new name in a slot of a node, or None if none is found."""
        for _ in range(MOST_CANARIES):
            name = b"kv1/{%b}/canary" % os.urandom(8).hex().encode()
            if self.owner(slot_of_name(name)) is node:
                return name
        return None
