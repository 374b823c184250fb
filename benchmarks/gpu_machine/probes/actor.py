"""A process of a probe, which executes one operation at a time for another process.

The probe itself never uses CUDA. So an actor can be killed, or broken by an error that CUDA does
not recover from, and the probe still answers.
"""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

LONGEST = 1 << 16
# Importing cupy and making a context take some seconds, beside compilers of other processes.
PATIENCE = 60.0
FOLDER = Path(__file__).parents[2]


class ActorError(Exception):
    """An operation failed in an actor, or the actor died: the reason."""


class Actor:
    """Starts a process, sends it operations, and kills it at the end of its block. For one thread.

    ``prefix`` is a command that starts the process, for example ``unshare``.
    """

    def __init__(self, *prefix: str) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.settimeout(PATIENCE)
        module = ("-m", "gpu_machine.probes.actor", str(theirs.fileno()))
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603 - our own program
                [*prefix, sys.executable, *module],
                cwd=FOLDER,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=sys.stderr,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._socket.close()

    def ask(self, operation: str, *, descriptor: int | None = None, **arguments: object) -> Any:  # noqa: ANN401
        """Returns the result of an operation of :class:`device.Device`.

        Sends a descriptor along. If the answer is a descriptor, it is open in this process. Raises
        :class:`ActorError`.
        """
        message = json.dumps({"operation": operation, "arguments": arguments}).encode()
        given = [] if descriptor is None else [descriptor]
        try:
            socket.send_fds(self._socket, [message], given)
            data, descriptors, _, _ = socket.recv_fds(self._socket, LONGEST, 1)
        except OSError as error:
            raise ActorError(f"{operation}: {error}") from error
        if not data:
            status = self._process.wait()
            raise ActorError(f"{operation}: the process ended with status {status}")
        answer = json.loads(data)
        if "error" in answer:
            raise ActorError(f"{operation}: {answer['error']}")
        return descriptors[0] if descriptors else answer["value"]

    def kill(self) -> None:
        """Ends the process by SIGKILL and waits until it is reaped."""
        self._process.kill()
        self._process.wait()


def serve(channel: socket.socket) -> None:
    """Executes the operations from a socket until its other end closes."""
    # Imported here, so that an import error becomes an answer.
    from gpu_machine.probes.device import Device  # noqa: PLC0415

    device = Device()
    while True:
        data, descriptors, _, _ = socket.recv_fds(channel, LONGEST, 1)
        if not data:
            return
        request = json.loads(data)
        arguments = {**request["arguments"], **dict(zip(["descriptor"], descriptors, strict=False))}
        send: list[int] = []
        try:
            value = getattr(device, request["operation"])(**arguments)
            if request["operation"] == "create":
                send.append(value)
            answer = {"value": value}
        except Exception as error:  # noqa: BLE001 - whatever CUDA and cupy raise is the answer
            answer = {"error": f"{type(error).__name__}: {error}"[:500]}
        socket.send_fds(channel, [json.dumps(answer).encode()], send)
        for each in (*descriptors, *send):
            os.close(each)


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as made:
        serve(made)
