"""The remote engine on a cluster of Valkey or Redis."""

import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import Final, Generic, NamedTuple, TypeVar

from kvstore.remote.connection_pool import ConnectionPool
from kvstore.remote.engine import EngineNodes, ReadResult, require_lives
from kvstore.remote.errors import (
    DeadlinePassed,
    EngineUnreachable,
    Reaction,
    RemoteError,
    TryAgain,
    WrongNode,
)
from kvstore.remote.finding import EngineFinding
from kvstore.remote.valkey.address import ClusterAddress, EngineAddress
from kvstore.remote.valkey.cluster.cluster_call import (
    ASKING,
    ClusterCall,
    Redirected,
)
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
from kvstore.remote.valkey.valkey_engine import (
    CAPABILITIES,
    CONNECT_SECONDS,
    CONNECTION_COUNT,
    USUAL_SECONDS,
)
from kvstore.remote.valkey.valkey_findings import findings_of

T = TypeVar("T")
# Indexes of names that one command takes, and those of each node.
_Questions = list[list[int]]
_Groups = dict[ClusterNode, _Questions]
# Returns the command for the name of an index, which answers with 0 or 1.
_Command = Callable[[RespConnection, int], bytes]
# A call follows a MOVED or an ASK once. A slot that moves again meanwhile is for the next call.
ROUNDS: Final = 2


class ClusterEngine:
    """A :class:`~kvstore.remote.engine.RemoteEngine` on the primaries of a cluster. Thread-safe.

    ``connections`` are those to each primary. A node that misses the deadlines of calls of
    ``usual_seconds`` is away, and costs no later call its time. The other arguments are those of
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
        usual_seconds: float = USUAL_SECONDS,
    ) -> None:
        connector = ValkeyConnector(
            credential=credential, tls=tls, seconds=connect_seconds, resolve=resolve
        )

        def make_pool(node: EngineAddress) -> ConnectionPool[RespConnection]:
            return ConnectionPool(
                lambda: connector.connect(node), size=connections, connect_seconds=connect_seconds
            )

        self._replicas = replicas
        self._cluster = ClusterMap(address.seeds, connector, make_pool, usual_seconds=usual_seconds)

    def exists_many(self, names: Sequence[bytes], deadline: float) -> list[bool]:
        """Counts the names of each slot first, and asks one by one where only some are there."""
        found = [False] * len(names)
        left: Redirected = dict.fromkeys(range(len(names)))
        for _ in range(ROUNDS):
            if not left:
                break
            with self._call(names, left, deadline) as call:
                left = _Existence(call, names, list(left), found).ask()
        return found

    def get_many(
        self, names: Sequence[bytes], into: Sequence[memoryview], deadline: float
    ) -> Iterator[ReadResult]:
        """Asks each node for its next value before it receives one."""
        yield from self._streamed(
            names,
            deadline,
            _Steps(
                lambda connection, index: connection.send(encoded(b"GET", names[index])),
                lambda connection, index: connection.value(into[index]),
                lambda _error: ReadResult.AWAY,
            ),
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
        now: dict[RespConnection, int] = {}

        def read_clocks(call: ClusterCall) -> None:
            call.on_each(
                [node for node, _ in call.connections()],
                lambda _, connection: now.update({connection: engine_ms(connection)}),
            )

        yield from self._streamed(
            names,
            deadline,
            _Steps(
                lambda connection, index: send_set(
                    connection, names[index], values[index], now[connection] + lives_ms[index]
                ),
                lambda connection, _: connection.outcome(),
                lambda error: error,
                read_clocks,
            ),
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

    def nodes(self) -> EngineNodes:
        """Returns the state of the primaries."""
        return self._cluster.states()

    def ping(self, deadline: float) -> None:
        """Waits for an attempt to connect to a primary, and reads the slots first if need be."""
        self._cluster.require_known(deadline, insist=True)
        self._on_any(deadline, lambda node: node.ping(deadline - monotonic()))

    def findings(self, deadline: float) -> list[EngineFinding]:
        """Reads the settings of all primaries that answer."""

        def read(node: ClusterNode) -> list[EngineFinding]:
            place = f" at {node.address.host}:{node.address.port}"
            return _with(node, deadline, lambda connection: findings_of(connection, place))

        return [each for found in self._on_all(deadline, read) for each in found]

    def close(self) -> None:
        """Interrupts the calls under way."""
        self._cluster.close()

    def _call(
        self, names: Sequence[bytes], asked: Mapping[int, ClusterNode | None], deadline: float
    ) -> ClusterCall:
        """Returns a call for the names of some indexes, on the nodes that redirections named."""
        redirected = dict(enumerate(asked.values()))
        return ClusterCall(self._cluster, [names[at] for at in asked], deadline, redirected)

    def _streamed(self, names: Sequence[bytes], deadline: float, steps: "_Steps[T]") -> Iterator[T]:
        """Yields a result for each name, in order. Those from the first that moved come last."""
        if not names:
            return
        held: dict[int, T] = {}
        with self._call(names, dict.fromkeys(range(len(names))), deadline) as call:
            steps.prepare(call)
            for index, result in enumerate(call.pipelined(steps.send, steps.receive, steps.lost)):
                if held or index in call.moved:
                    held[index] = result
                else:
                    yield result
        if held:
            held.update(self._followed(names, deadline, steps, call.moved))
        yield from held.values()

    def _followed(
        self, names: Sequence[bytes], deadline: float, steps: "_Steps[T]", moved: Redirected
    ) -> dict[int, T]:
        """Returns the results of names that were elsewhere, as far as those nodes answer."""
        at = list(moved)
        results: dict[int, T] = {}
        try:
            with self._call(names, moved, deadline) as call:
                steps.prepare(call)
                found = call.pipelined(
                    lambda connection, index: steps.send(connection, at[index]),
                    lambda connection, index: steps.receive(connection, at[index]),
                    steps.lost,
                )
                # Those before an error count.
                results.update(zip(at, found, strict=True))
        except RemoteError as error:
            if error.reaction is not Reaction.AWAY:
                raise
        return results

    def _single(self, name: bytes, deadline: float, work: Callable[[RespConnection], T]) -> T:
        """Runs something on the node of one name."""
        refused: RemoteError = TryAgain("the slot moves")
        left: Redirected = {0: None}
        for _ in range(ROUNDS):
            with self._call([name], left, deadline) as call:
                for node, connection in call.connections():
                    try:
                        if call.is_asked(0):
                            connection.send(ASKING)
                            call.receive_asking(connection, 0)
                        return work(connection)
                    except WrongNode as error:
                        refused = call.note_moved(error, node, [0])
                    except RemoteError as error:
                        call.lose(node, error)
                if not call.moved:
                    raise call.blamed()
            left = call.moved
        raise refused

    def _change(self, names: Sequence[bytes], deadline: float, command: _Command) -> None:
        """Sends a command for each name to its node. Raises an error of a node at the end."""
        error: RemoteError | None = None
        left: Redirected = dict.fromkeys(range(len(names)))
        for _ in range(ROUNDS):
            if not left:
                break
            with self._call(names, left, deadline) as call:
                left = _changed(call, list(left), command)
                if call.error is not None:
                    error = call.blamed()
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


class _Steps(NamedTuple, Generic[T]):
    """The steps of a call for each of its names, by index, as a call's ``pipelined`` takes them.

    ``prepare`` is called before the first one.
    """

    send: Callable[[RespConnection, int], None]
    receive: Callable[[RespConnection, int], T]
    lost: Callable[[RemoteError], T]
    prepare: Callable[[ClusterCall], None] = lambda _: None


class _Existence:
    """The question which names are there, by one call. ``found`` gets the answers.

    ``indexes`` are those of the call's names.
    """

    def __init__(
        self, call: ClusterCall, names: Sequence[bytes], indexes: Sequence[int], found: list[bool]
    ) -> None:
        self._call = call
        self._names = names
        self._indexes = indexes
        self._found = found

    def ask(self) -> Redirected:
        """Asks for all names, and returns those that are on other nodes."""
        groups = self._groups()
        self._call.on_each(groups, lambda node, connection: self._send(groups[node], connection))
        for node in self._call.as_ready(groups):
            self._call.on_each([node], lambda *parts: self._hear_all(groups[parts[0]], *parts))
        return {self._indexes[at]: node for at, node in self._call.moved.items()}

    def _groups(self) -> "_Groups":
        """Returns the places of each node's names, in groups that one command takes."""
        groups: _Groups = {}
        for node, places in self._call.indexes_of_nodes().items():
            slots: dict[int, list[int]] = {}
            for at in places:
                # A node answers for one name alone whose slot it has not yet.
                slot = -at if self._call.is_asked(at) else self._call.slots[at] + 1
                slots.setdefault(slot, []).append(at)
            groups[node] = [
                group[start : start + NAMES_PER_TRIP]
                for group in slots.values()
                for start in range(0, len(group), NAMES_PER_TRIP)
            ]
        return groups

    def _send(self, questions: "_Questions", connection: RespConnection) -> None:
        commands = []
        for group in questions:
            names = (self._names[self._indexes[at]] for at in group)
            commands += [ASKING] if self._call.is_asked(group[0]) else []
            commands.append(encoded(b"EXISTS", *names))
        connection.send(b"".join(commands), replies=len(commands))

    def _hear_all(
        self, questions: "_Questions", node: ClusterNode, connection: RespConnection
    ) -> None:
        if single := self._hear(questions, node, connection):
            self._send(single, connection)
            self._hear(single, node, connection)

    def _hear(
        self, questions: "_Questions", node: ClusterNode, connection: RespConnection
    ) -> "_Questions":
        """Returns the names that have to be asked for alone, since only some are there."""
        single: _Questions = []
        for group in questions:
            try:
                self._call.receive_asking(connection, group[0])
                count = _count_of(connection, group)
            except WrongNode as error:
                self._call.note_moved(error, node, group)
                continue
            for at in group:
                self._found[self._indexes[at]] = count == len(group)
            if count not in (0, len(group)) and len(group) > 1:
                single += [[at] for at in group]
        return single


def _count_of(connection: RespConnection, group: Sequence[int]) -> int:
    """Receives how many names are there, or returns -1 if their slot moves and some did.

    Asked for alone, each of those has an answer.
    """
    try:
        return count_among(connection, len(group))
    except TryAgain:
        return -1


def _changed(call: ClusterCall, indexes: Sequence[int], command: _Command) -> Redirected:
    """Sends each node the commands of its names; returns the names that are on other nodes."""
    groups = call.indexes_of_nodes()

    def ask(node: ClusterNode, connection: RespConnection) -> None:
        commands = []
        for at in groups[node]:
            commands += [ASKING] if call.is_asked(at) else []
            commands.append(command(connection, indexes[at]))
        connection.send(b"".join(commands), replies=len(commands))

    def hear(node: ClusterNode, connection: RespConnection) -> None:
        for at in groups[node]:
            try:
                call.receive_asking(connection, at)
                count_among(connection, 1)
            except WrongNode as error:
                call.note_moved(error, node, [at])

    call.on_each(groups, ask)
    for node in call.as_ready(groups):
        call.on_each([node], hear)
    return {indexes[at]: node for at, node in call.moved.items()}
