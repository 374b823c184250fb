"""A worker in a process of its own that does what it is told, and goes on until it is told more."""

import os
import signal
import traceback
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

from kvstore_client import Client, ClientConfig
from pages.stamped_pages import IDENTITY, LAYOUT
from processes.page_worker import PageWorker

# For hundreds of requests, which may take a good part of a second each.
LIMIT = 200.0
# Proven death is the only way back for what a worker holds: no test waits this long.
LONG_TTL = 300.0
# A slow machine is no failure of the store.
CALL_TIMEOUT = 20.0
STOP = "stop"


class PageProcess:
    """A spawned process with a client and a :class:`PageWorker`.

    One command at a time: :meth:`ask`, or :meth:`tell` and then :meth:`answer`.
    What the command raises is raised here, with the worker's traceback as a note.
    """

    def __init__(
        self,
        runtime_dir: Path,
        name: str,
        *,
        ttl: float = LONG_TTL,
        barrier: Barrier | None = None,
        join: bytes | None = None,
    ) -> None:
        self.name = name
        context = get_context("spawn")
        self._pipe, remote = context.Pipe()
        config = {"ttl": ttl, "call_timeout": CALL_TIMEOUT, "display_name": name}
        self._process = context.Process(
            target=_serve, args=(remote, runtime_dir, config, barrier, join), daemon=True
        )
        self._process.start()
        remote.close()

    @property
    def pid(self) -> int:
        """The process's id."""
        assert self._process.pid is not None
        return self._process.pid

    def ask(self, command: str, *args: Any, **named: Any) -> Any:  # noqa: ANN401  # as the command's
        """Have a method of the worker called and return its answer."""
        self.tell(command, *args, **named)
        return self.answer()

    def tell(self, command: str, *args: Any, **named: Any) -> None:  # noqa: ANN401  # as the command's
        """Have a method called whose answer is waited for later, or never."""
        self._pipe.send((command, args, named))

    def answer(self) -> Any:  # noqa: ANN401  # as the command's
        """Returns the answer; EOFError from a process that died."""
        if not self._pipe.poll(LIMIT):
            msg = f"{self.name} did not answer"
            raise TimeoutError(msg)
        answer = self._pipe.recv()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def stop(self) -> Any:  # noqa: ANN401  # as the command's
        """Ends a command that goes on until it is told to end, and returns its answer."""
        self.tell(STOP)
        return self.answer()

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal."""
        os.kill(self.pid, number)

    def wait_exit(self) -> int | None:
        """Waits for its end and returns the exit status, negative for a signal."""
        self._process.join(LIMIT)
        return self._process.exitcode

    def leave(self) -> int | None:
        """Have it close its client and end, and return the exit status."""
        self._pipe.close()
        return self.wait_exit()

    def kill(self) -> None:
        """Sends SIGKILL, wait for the end and closes the pipe. Can be repeated."""
        self._process.kill()
        self._process.join()
        self._pipe.close()


def _serve(
    pipe: Connection,
    runtime_dir: Path,
    config: dict[str, Any],
    barrier: Barrier | None,
    join: bytes | None,
) -> None:
    client = Client(runtime_dir, ClientConfig(**config), join=join)
    client.start()
    namespace = client.namespace(IDENTITY, LAYOUT)
    assert namespace.wait_open(LIMIT), namespace.failure
    worker = PageWorker(client, namespace, told=pipe.poll, barrier=barrier)
    while True:
        try:
            command, args, named = pipe.recv()
        except EOFError:
            break
        if command == STOP:
            continue
        try:
            answer = getattr(worker, command)(*args, **named)
            worker.settle()
        except Exception as error:  # noqa: BLE001  # raised again where the answer is read
            error.add_note(traceback.format_exc())
            answer = error
        pipe.send(answer)
    client.close()
