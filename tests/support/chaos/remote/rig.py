"""The engine that the hosts of a chaos run share, with a replica, and each host's line to it."""

import signal
from pathlib import Path
from typing import IO

from inference_worker.demo.valkey_server import ValkeyServer
from processes.proxy import GOOD, SocketProxy
from support.loopback import HOST, free_ports

# So little that it evicts all the time, and enough for what the other host asks for next.
MEMORY = "48mb"
# A replica follows at once, and not after the seconds in which others may ask too.
REPLICATION = ("--repl-diskless-sync-delay", "0")


class EngineRig:
    """A primary, a replica, and for each host a line to the primary, which may be bad.

    A failover makes the replica the primary, and leads the lines to it. One thread changes it.
    """

    def __init__(self, folder: Path, hosts: int, log: IO[bytes]) -> None:
        ports = free_ports(2)
        self._nodes = [
            ValkeyServer(
                folder / f"e{number}", log=log, memory=MEMORY, port=port, settings=REPLICATION
            )
            for number, port in enumerate(ports)
        ]
        self._primary = 0
        self._follow(1)
        self._paths = [folder / f"line{number}" for number in range(hosts)]
        self.lines = [SocketProxy(path, self.primary.socket) for path in self._paths]

    @property
    def primary(self) -> ValkeyServer:
        """The server that the lines lead to."""
        return self._nodes[self._primary]

    def url(self, host: int) -> str:
        """Returns the address of the engine for a host."""
        return f"valkey+unix://{self._paths[host]}"

    def stop(self) -> None:
        """Stops the primary, which then does not answer."""
        self.primary.send(signal.SIGSTOP)

    def resume(self) -> None:
        """Lets the primary go on."""
        self.primary.send(signal.SIGCONT)

    def fail_over(self) -> None:
        """Kills the primary. Its replica, which may lack its last writes, takes its place."""
        old = self._primary
        self.primary.kill()
        self._primary = 1 - old
        self.primary.command("REPLICAOF", "NO", "ONE")
        for line in self.lines:
            line.retarget(self.primary.socket)
        self._nodes[old].start()
        self._follow(old)

    def heal(self) -> None:
        """Ends the faults of all lines."""
        for line in self.lines:
            line.line = GOOD

    def close(self) -> None:
        """Ends everything."""
        for line in self.lines:
            line.close()
        for node in self._nodes:
            node.send(signal.SIGCONT)
            node.kill()

    def _follow(self, number: int) -> None:
        """Makes a node the replica of the primary."""
        self._nodes[number].command("REPLICAOF", HOST, str(self.primary.port))
