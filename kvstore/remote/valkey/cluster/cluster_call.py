"""The nodes that one call to a cluster uses."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from select import POLLIN, poll
from time import monotonic
from types import MappingProxyType, TracebackType
from typing import Final, Self, TypeVar

from kvstore.remote.errors import (
    ClusterDown,
    CommandForbidden,
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
from kvstore.remote.valkey.resp import RespConnection, encoded

T = TypeVar("T")

# The node of each index that an ASK error named, and None for one of a MOVED error.
Redirected = Mapping[int, ClusterNode | None]
NO_REDIRECTIONS: Final[Redirected] = MappingProxyType({})
ASKING: Final = encoded(b"ASKING")
# A node that hangs gets this share of the time that is left, if the call waits for others too.
SHARE: Final = 0.5


class ClusterCall:
    """A context manager with a connection to each node that has one of some names.

    ``asked`` has the nodes of names that are not where their slots are. A node that fails is lost
    for this call: its connection is given back, and its names get no answer. If no node of the
    cluster answers, the call raises the error of the last node that it loses. Errors whose
    reaction is not AWAY concern the caller, who gets them from any node.
    """

    def __init__(
        self,
        cluster: ClusterMap,
        names: Sequence[bytes],
        deadline: float,
        asked: Redirected = NO_REDIRECTIONS,
    ) -> None:
        self._began = self._wait_began = monotonic()
        if self._began >= deadline:
            raise DeadlinePassed("the deadline passed before the call")
        cluster.require_known(deadline)
        self._deadline = deadline
        self._cluster = cluster
        self._connections: dict[ClusterNode, RespConnection] = {}
        self._asked = {index for index, node in asked.items() if node is not None}
        # The slot and the node of each name.
        self.slots = [slot_of_name(name) for name in names]
        owners = {slot: cluster.owner(slot) for slot in set(self.slots)}
        self.nodes = [asked.get(at) or owners[slot] for at, slot in enumerate(self.slots)]
        self.error: RemoteError | None = None
        self.moved: dict[int, ClusterNode | None] = {}
        """The names that are on other nodes, as ``asked`` of another call takes them."""

    def __enter__(self) -> Self:
        # One order for all calls: two that wait for each other's connections would never end.
        wanted = {node for node in self.nodes if node is not None}
        for node in sorted(wanted, key=lambda each: each.address[1:3]):
            try:
                # A node that hangs may have no connection ready.
                connection = node.take(self._wait_end(len(wanted)))
            except RemoteError as error:
                self._count(node, error)
                if isinstance(error, EngineClosed) or error.reaction is not Reaction.AWAY:
                    self._give_all(None)
                    raise
            else:
                connection.deadline = self._deadline
                self._connections[node] = connection
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

    def is_asked(self, index: int) -> bool:
        """Returns whether a name is on a node that has not its slot yet."""
        return index in self._asked

    def on_each(
        self, nodes: Iterable[ClusterNode], work: Callable[[ClusterNode, RespConnection], None]
    ) -> None:
        """Runs something on nodes, and loses those that fail in it."""
        for node in list(nodes):
            if (connection := self._connections.get(node)) is not None:
                connection.deadline = self._wait_end(len(self._connections))
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
        began = monotonic()
        while left:
            ready = [at for at, node in left.items() if self._connections[node].has_ready()]
            wait_ms = 0 if ready else max(int((self._deadline - monotonic()) * 1000) + 1, 0)
            ready = ready or [at for at, _ in polled.poll(wait_ms)]
            if not ready:
                self._wait_began = began
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
        """Yields a result for each name, in order, with some requests of each node ahead.

        The result of a name that is on another node is one that was lost, and ``moved`` has it.
        """
        waiting = {node: iter(indexes) for node, indexes in self.indexes_of_nodes().items()}
        unanswered = dict.fromkeys(waiting, 0)
        for index, node in enumerate(self.nodes):
            result: T | None = None
            if node is None or node not in self._connections:
                yield lost(self.blamed())
                continue
            connection = self._connections[node]
            connection.deadline = self._wait_end(len(self._connections))
            try:
                while unanswered[node] < REQUESTS_AHEAD:
                    following = next(waiting[node], None)
                    if following is None:
                        break
                    if self.is_asked(following):
                        connection.send(ASKING)
                    send(connection, following)
                    unanswered[node] += 1
                unanswered[node] -= 1
                self.receive_asking(connection, index)
                result = receive(connection, index)
            except WrongNode as error:
                result = lost(self.note_moved(error, node, [index]))
            except RemoteError as error:
                self.lose(node, error)
                result = lost(self.blamed())
            yield result

    def receive_asking(self, connection: RespConnection, index: int) -> None:
        """Receives the status of the ASKING before a command, if there was one.

        Without the right to it, the command that follows is answered by a redirection.
        """
        if self.is_asked(index):
            try:
                connection.simple()
            except CommandForbidden:
                return

    def note_moved(
        self, error: WrongNode, node: ClusterNode, indexes: Sequence[int]
    ) -> RemoteError:
        """Notes that another node has names; returns their error for this call."""
        self.moved.update(dict.fromkeys(indexes, self._cluster.note_redirection(error, node)))
        return TryAgain(str(error))

    def lose(self, node: ClusterNode, error: RemoteError) -> None:
        """Gives up a node. Raises the error if it concerns the caller, or no node answers."""
        if error.reaction is not Reaction.AWAY:
            raise error
        self._count(node, error)
        node.give_back(self._connections.pop(node))
        self._require_any()

    def blamed(self) -> RemoteError:
        """Returns the error of the names whose node was lost."""
        return self._cluster.blame(self.error or ClusterDown("the node of a name is lost"))

    def _wait_end(self, node_count: int) -> float:
        """Begins a wait for one of some nodes; returns the time at which it ends."""
        self._wait_began = now = monotonic()
        share = SHARE if node_count > 1 else 1.0
        return now + (self._deadline - now) * share

    def _count(self, node: ClusterNode, error: RemoteError) -> None:
        self.error = error
        node.fail(error, self._began, monotonic() - self._wait_began)
        self._cluster.note_error()

    def _require_any(self) -> None:
        if self.error is not None and not self._connections:
            error = self._cluster.blame(self.error)
            if error.reaction is not Reaction.NODE:
                raise error

    def _give_all(self, error: RemoteError | None) -> None:
        while self._connections:
            node, connection = self._connections.popitem()
            if error is None:
                node.succeed()
            node.give_back(connection)
