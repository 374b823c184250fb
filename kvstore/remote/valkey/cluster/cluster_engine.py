"""The remote engine on a cluster of Valkey or Redis."""

import ssl
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from time import monotonic
from typing import Final, TypeVar

from kvstore.remote.connection_pool import ConnectionPool
from kvstore.remote.engine import ReadResult, require_lives
from kvstore.remote.errors import (
    DeadlinePassed,
    EngineUnreachable,
    RemoteError,
    TryAgain,
    WrongNode,
)
from kvstore.remote.finding import EngineFinding
from kvstore.remote.valkey.address import ClusterAddress, EngineAddress
from kvstore.remote.valkey.cluster.cluster_call import ClusterCall
from kvstore.remote.valkey.cluster.cluster_map import ClusterMap
from kvstore.remote.valkey.cluster.cluster_node import ClusterNode
from kvstore.remote.valkey.commands import (
    NAMES_PER_TRIP,
    count_among,
    engine_ms,
    read_control,
    refresh_command,
    send_set,
    write_control,
)
from kvstore.remote.valkey.connector import Resolver, ValkeyConnector, read_clock, resolve_stream
from kvstore.remote.valkey.resp import RespConnection, encoded
from kvstore.remote.valkey.valkey_engine import CAPABILITIES, CONNECT_SECONDS, CONNECTION_COUNT
from kvstore.remote.valkey.valkey_findings import findings_of

T = TypeVar("T")
# Indexes of names that one command takes, and those of each node.
_Questions = list[list[int]]
_Groups = dict[ClusterNode, _Questions]
# Returns the command for the name of an index, which answers with 0 or 1.
_Command = Callable[[RespConnection, int], bytes]
# A call follows a MOVED once. A slot that moves again meanwhile is one for the next call.
ROUNDS: Final = 2


class ClusterEngine:
    """A :class:`~kvstore.remote.engine.RemoteEngine` on the primaries of a cluster. Thread-safe.

    ``connections`` are those to each primary. The other arguments are those of
    :class:`~kvstore.remote.valkey.valkey_engine.ValkeyEngine`.
    """

    capabilities = CAPABILITIES

    def __init__(
        self,
        address: ClusterAddress,
        *,
        credential: Path | None = None,
        tls: ssl.SSLContext | None = None,
        connections: int = CONNECTION_COUNT,
        connect_seconds: float = CONNECT_SECONDS,
        resolve: Resolver = resolve_stream,
        replicas: int = 0,
    ) -> None:
        connector = ValkeyConnector(
            credential=credential, tls=tls, seconds=connect_seconds, resolve=resolve
        )

        def make_pool(node: EngineAddress) -> ConnectionPool[RespConnection]:
            return ConnectionPool(
                lambda: connector.connect(node), size=connections, connect_seconds=connect_seconds
            )

        self._replicas = replicas
        self._cluster = ClusterMap(address.seeds, connector, make_pool)

    def exists_many(self, names: Sequence[bytes], deadline: float) -> list[bool]:
        """Counts the names of each slot first, and asks one by one where only some are there."""
        found = [False] * len(names)
        left = list(range(len(names)))
        for _ in range(ROUNDS):
            if not left:
                break
            with self._call(names, left, deadline) as call:
                left = _exists(call, names, _by_slot(call, left), found)
        return found

    def get_many(
        self, names: Sequence[bytes], into: Sequence[memoryview], deadline: float
    ) -> Iterator[ReadResult]:
        """Asks each node for its next value before it receives one."""
        if not names:
            return
        with self._call(names, range(len(names)), deadline) as call:
            yield from call.pipelined(
                lambda connection, index: connection.send(encoded(b"GET", names[index])),
                lambda connection, index: connection.value(into[index]),
                lambda _error: ReadResult.AWAY,
            )

    def put_many(
        self,
        names: Sequence[bytes],
        values: Sequence[memoryview],
        lives_ms: Sequence[int],
        deadline: float,
    ) -> Iterator[RemoteError | None]:
        """Sends each node its next value before it receives a status."""
        require_lives(lives_ms)
        if not names:
            return
        with self._call(names, range(len(names)), deadline) as call:
            now: dict[RespConnection, int] = {}
            call.on_each(
                [node for node, _ in call.connections()],
                lambda _, connection: now.update({connection: engine_ms(connection)}),
            )
            yield from call.pipelined(
                lambda connection, index: send_set(
                    connection, names[index], values[index], now[connection] + lives_ms[index]
                ),
                lambda connection, _: connection.outcome(),
                lambda error: error,
            )

    def refresh_many(
        self, names: Sequence[bytes], lives_ms: Sequence[int], deadline: float
    ) -> None:
        """Sets expiries only where they are later than before."""
        self._change(
            names,
            deadline,
            lambda connection, at: refresh_command(names[at], engine_ms(connection) + lives_ms[at]),
        )

    def control(self, name: bytes, deadline: float) -> bytes | None:
        """Reads a short value."""
        return self._single(name, deadline, lambda connection: read_control(connection, name))

    def set_control(
        self, name: bytes, value: bytes, life_ms: int, deadline: float, *, only_if_absent: bool
    ) -> bool:
        """Writes a short value, and waits for the replicas that the engine was given."""
        return self._single(
            name,
            deadline,
            lambda connection: write_control(
                connection,
                name,
                value,
                life_ms,
                only_if_absent=only_if_absent,
                replicas=self._replicas,
            ),
        )

    def delete_many(self, names: Sequence[bytes], deadline: float) -> None:
        """Unlinks values one by one: one command takes no names of several slots."""
        self._change(names, deadline, lambda _, at: encoded(b"UNLINK", names[at]))

    def time_ms(self, deadline: float) -> int:
        """Reads the clock of a primary that answers."""
        return self._on_any(deadline, lambda node: _with(node, deadline, read_clock))

    def ping(self, deadline: float) -> None:
        """Waits for an attempt to connect to a primary, and reads the slots first if need be."""
        self._cluster.require_known(deadline, insist=True)
        self._on_any(deadline, lambda node: node.probe(deadline - monotonic()))

    def findings(self, deadline: float) -> list[EngineFinding]:
        """Reads the settings of all primaries that answer."""

        def read(node: ClusterNode) -> list[EngineFinding]:
            place = f" at {node.address.host}:{node.address.port}"
            return _with(node, deadline, lambda connection: findings_of(connection, place))

        return [each for found in self._on_all(deadline, read) for each in found]

    def close(self) -> None:
        """Interrupts the calls under way."""
        self._cluster.close()

    def _call(self, names: Sequence[bytes], indexes: Sequence[int], deadline: float) -> ClusterCall:
        return ClusterCall(self._cluster, [names[at] for at in indexes], deadline)

    def _single(self, name: bytes, deadline: float, work: Callable[[RespConnection], T]) -> T:
        """Runs something on the node of one name."""
        refused: RemoteError = TryAgain("the slot moves")
        for _ in range(ROUNDS):
            with self._call([name], [0], deadline) as call:
                [(node, connection)] = call.connections()
                try:
                    return work(connection)
                except WrongNode as error:
                    refused = call.moved(error, node)
                except RemoteError as error:
                    call.lose(node, error)
        raise refused

    def _change(self, names: Sequence[bytes], deadline: float, command: _Command) -> None:
        """Sends a command for each name to its node. Raises an error of a node at the end."""
        left, error = list(range(len(names))), None
        for _ in range(ROUNDS):
            if not left:
                break
            with self._call(names, left, deadline) as call:
                left = _changed(call, left, command)
                error = error or call.error
        if error is not None:
            raise error
        if left:
            raise TryAgain(f"the slots of {len(left)} names move")

    def _on_any(self, deadline: float, work: Callable[[ClusterNode], T]) -> T:
        """Runs something on the first primary on which it works."""
        for result in self._on_all(deadline, work):
            return result
        raise EngineUnreachable("no primary of the cluster is known")

    def _on_all(self, deadline: float, work: Callable[[ClusterNode], T]) -> Iterator[T]:
        """Yields the results of the primaries that answer. Raises an error if none does."""
        if monotonic() >= deadline:
            raise DeadlinePassed("the deadline passed before the call")
        self._cluster.require_known(deadline)
        refused: RemoteError | None = None
        has_worked = False
        for node in sorted(self._cluster.nodes(), key=lambda each: each.needs_probe):
            try:
                result = work(node)
            except RemoteError as error:
                refused = error
                continue
            has_worked = True
            yield result
        if refused is not None and not has_worked:
            raise refused


def _with(node: ClusterNode, deadline: float, work: Callable[[RespConnection], T]) -> T:
    """Runs something on a connection to a node."""
    connection = node.take(deadline)
    try:
        return work(connection)
    finally:
        node.give_back(connection)


def _by_slot(call: ClusterCall, indexes: Sequence[int]) -> _Groups:
    """Returns the indexes of each node's names, in groups that one command takes."""
    slots: dict[int, list[int]] = {}
    for at, slot in zip(indexes, call.slots, strict=True):
        slots.setdefault(slot, []).append(at)
    nodes = dict(zip(call.slots, call.nodes, strict=True))
    groups: _Groups = {node: [] for node, _ in call.connections()}
    for slot, group in slots.items():
        node = nodes[slot]
        if node is not None and node in groups:
            groups[node] += [
                group[start : start + NAMES_PER_TRIP]
                for start in range(0, len(group), NAMES_PER_TRIP)
            ]
    return groups


def _exists(
    call: ClusterCall, names: Sequence[bytes], groups: _Groups, found: list[bool]
) -> list[int]:
    """Notes which names are there; returns the indexes of those whose slots moved."""
    moved: list[int] = []

    def ask(questions: _Questions, connection: RespConnection) -> None:
        commands = [encoded(b"EXISTS", *(names[at] for at in group)) for group in questions]
        connection.send(b"".join(commands), replies=len(commands))

    def hear(questions: _Questions, node: ClusterNode, connection: RespConnection) -> _Questions:
        """Returns the names that have to be asked for alone, since only some are there."""
        single: _Questions = []
        for group in questions:
            try:
                count = _count_of(connection, group)
            except WrongNode as error:
                call.moved(error, node)
                moved.extend(group)
                continue
            for at in group:
                found[at] = count == len(group)
            if count not in (0, len(group)) and len(group) > 1:
                single += [[at] for at in group]
        return single

    def hear_all(node: ClusterNode, connection: RespConnection) -> None:
        if single := hear(groups[node], node, connection):
            ask(single, connection)
            hear(single, node, connection)

    call.on_each(groups, lambda node, connection: ask(groups[node], connection))
    for node in call.as_ready(groups):
        call.on_each([node], hear_all)
    return moved


def _count_of(connection: RespConnection, group: Sequence[int]) -> int:
    """Receives how many names are there, or returns -1 if their slot moves and some did.

    Asked for alone, each of those has an answer.
    """
    try:
        return count_among(connection, len(group))
    except TryAgain:
        return -1


def _changed(call: ClusterCall, indexes: Sequence[int], command: _Command) -> list[int]:
    """Sends each node the commands of its names; returns the indexes of names that moved."""
    groups = call.indexes_of_nodes()
    moved: list[int] = []

    def ask(node: ClusterNode, connection: RespConnection) -> None:
        commands = [command(connection, indexes[at]) for at in groups[node]]
        connection.send(b"".join(commands), replies=len(commands))

    def hear(node: ClusterNode, connection: RespConnection) -> None:
        for at in groups[node]:
            try:
                count_among(connection, 1)
            except WrongNode as error:
                call.moved(error, node)
                moved.append(indexes[at])

    call.on_each(groups, ask)
    for node in call.as_ready(groups):
        call.on_each([node], hear)
    return moved
