"""The nodes that one call to a cluster uses."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from select import POLLIN, poll
from time import monotonic
from types import TracebackType
from typing import Self, TypeVar

from kvstore.remote.errors import (
    ClusterDown,
    DeadlinePassed,
    EngineClosed,
    Reaction,
    RemoteError,
    TryAgain,
    WrongNode,
)
from kvstore.remote.valkey.cluster.cluster_map import ClusterMap
from kvstore.remote.valkey.cluster.cluster_node import ClusterNode
from kvstore.remote.valkey.cluster.cluster_slots import slot_of_name
from kvstore.remote.valkey.commands import REQUESTS_AHEAD
from kvstore.remote.valkey.resp import RespConnection

T = TypeVar("T")


class ClusterCall:
    """A context manager with a connection to each node that has one of some names.

    A node that fails is lost for this call: its connection is given back, and its names get no
    answer. The call raises the error of the last node that it loses. Errors whose reaction is
    not AWAY concern the caller, who gets them from any node.
    """

    def __init__(self, cluster: ClusterMap, names: Sequence[bytes], deadline: float) -> None:
        if monotonic() >= deadline:
            raise DeadlinePassed("the deadline passed before the call")
        cluster.require_known(deadline)
        self.deadline = deadline
        self._cluster = cluster
        self._connections: dict[ClusterNode, RespConnection] = {}
        # The slot and the node of each name.
        self.slots = [slot_of_name(name) for name in names]
        owners = {slot: cluster.owner(slot) for slot in set(self.slots)}
        self.nodes = [owners[slot] for slot in self.slots]
        self.error: RemoteError | None = None

    def __enter__(self) -> Self:
        # One order for all calls: two that wait for each other's connections would never end.
        wanted = {node for node in self.nodes if node is not None}
        for node in sorted(wanted, key=lambda each: each.address[1:3]):
            try:
                # A node that hangs may have no connection ready: it gets half of the time.
                now = monotonic()
                share = 0.5 if len(wanted) > 1 else 1.0
                connection = node.take(now + (self.deadline - now) * share)
                connection.deadline = self.deadline
                self._connections[node] = connection
            except RemoteError as error:
                self._count(node, error)
                if isinstance(error, EngineClosed) or error.reaction is not Reaction.AWAY:
                    self._give_all(None)
                    raise
        if any(node is None for node in self.nodes):
            self.error = self.error or ClusterDown("no node has the slot of a name")
            self._cluster.note_error()
        self._require_any()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._give_all(error if isinstance(error, RemoteError) else None)

    def connections(self) -> list[tuple[ClusterNode, RespConnection]]:
        """Returns the nodes that are not lost, with their connections."""
        return list(self._connections.items())

    def indexes_of_nodes(self) -> dict[ClusterNode, list[int]]:
        """Returns the indexes of the names of each node that is not lost."""
        found: dict[ClusterNode, list[int]] = {node: [] for node in self._connections}
        for index, node in enumerate(self.nodes):
            if node in self._connections:
                found[node].append(index)
        return found

    def on_each(
        self, nodes: Iterable[ClusterNode], work: Callable[[ClusterNode, RespConnection], None]
    ) -> None:
        """Runs something on nodes, and loses those that fail in it."""
        for node in list(nodes):
            if (connection := self._connections.get(node)) is not None:
                try:
                    work(node, connection)
                except RemoteError as error:
                    self.lose(node, error)

    def as_ready(self, nodes: Iterable[ClusterNode]) -> Iterator[ClusterNode]:
        """Yields nodes as their replies come, so none waits for one that hangs."""
        left = {
            self._connections[node].fileno(): node for node in nodes if node in self._connections
        }
        polled = poll()
        for number in left:
            polled.register(number, POLLIN)
        while left:
            ready = [at for at, node in left.items() if self._connections[node].has_ready()]
            wait_ms = 0 if ready else max(int((self.deadline - monotonic()) * 1000) + 1, 0)
            ready = ready or [at for at, _ in polled.poll(wait_ms)]
            if not ready:
                for node in left.values():
                    self.lose(node, DeadlinePassed("the node did not answer in time"))
                return
            for at in ready:
                polled.unregister(at)
                yield left.pop(at)

    def pipelined(
        self,
        send: Callable[[RespConnection, int], None],
        receive: Callable[[RespConnection, int], T],
        lost: Callable[[RemoteError], T],
    ) -> Iterator[T]:
        """Yields a result for each name, in order, with some requests of each node ahead."""
        waiting = {node: iter(indexes) for node, indexes in self.indexes_of_nodes().items()}
        unanswered = dict.fromkeys(waiting, 0)
        for index, node in enumerate(self.nodes):
            result: T | None = None
            if node is None or node not in self._connections:
                yield lost(self.error or ClusterDown("the node of a name is lost"))
                continue
            connection = self._connections[node]
            try:
                while unanswered[node] < REQUESTS_AHEAD:
                    following = next(waiting[node], None)
                    if following is None:
                        break
                    send(connection, following)
                    unanswered[node] += 1
                unanswered[node] -= 1
                result = receive(connection, index)
            except WrongNode as error:
                result = lost(self.moved(error, node))
            except RemoteError as error:
                self.lose(node, error)
                result = lost(error)
            yield result

    def moved(self, error: WrongNode, node: ClusterNode) -> TryAgain:
        """Notes that another node has a slot; returns the error of a name for this call."""
        self._cluster.note_moved(error, node)
        return TryAgain(str(error))

    def lose(self, node: ClusterNode, error: RemoteError) -> None:
        """Gives up a node. Raises the error if it concerns the caller, or no node is left."""
        if error.reaction is not Reaction.AWAY:
            raise error
        self._count(node, error)
        node.give_back(self._connections.pop(node))
        self._require_any()

    def _count(self, node: ClusterNode, error: RemoteError) -> None:
        self.error = error
        node.note(error)
        self._cluster.note_error()

    def _require_any(self) -> None:
        if self.error is not None and not self._connections:
            raise self.error

    def _give_all(self, error: RemoteError | None) -> None:
        while self._connections:
            node, connection = self._connections.popitem()
            if error is None:
                node.note(None)
            node.give_back(connection)
