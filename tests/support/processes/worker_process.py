"""A worker in a process of its own, whose methods a test calls by name."""

import os
import signal
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any, Protocol, Self

# For hundreds of requests, which may take a good part of a second each.
LIMIT = 200.0
STOP = "stop"


class Worker(Protocol):
    """An object whose methods are the commands of its process."""

    def settle(self) -> None:
        """Ends what a command left behind; called before its answer is sent."""


# Makes the worker in its process, and closes it at the end. It gets the process's end of the pipe,
# which has something to read once a command that goes on is to end, and arguments of its own.
Make = Callable[..., AbstractContextManager[Worker]]


class WorkerProcess:
    """Starts a process with the worker that ``make`` makes of ``arguments``.

    One command at a time: :meth:`ask`, or :meth:`tell` and then :meth:`answer`.
    What the command raises is raised here, with the worker's traceback as a note.
    As a context manager it kills the process at the end.
    """

    def __init__(self, name: str, make: Make, *arguments: Any, start: str = "spawn") -> None:  # noqa: ANN401  # as of make
        self.name = name
        context = get_context(start)
        self._pipe, remote = context.Pipe()
        self._process = context.Process(  # type: ignore[attr-defined]
            target=_serve, args=(remote, make, arguments), daemon=True
        )
        self._process.start()
        remote.close()

    @property
    def pid(self) -> int:
        """The process's id."""
        assert self._process.pid is not None
        return int(self._process.pid)

    def ask(self, command: str, *args: Any, **named: Any) -> Any:  # noqa: ANN401  # as the command's
        """Calls a method of the worker and returns its answer."""
        self.tell(command, *args, **named)
        return self.answer()

    def tell(self, command: str, *args: Any, **named: Any) -> None:  # noqa: ANN401  # as the command's
        """Calls a method whose answer is waited for later, or never."""
        self._pipe.send((command, args, named))

    def answer(self) -> Any:  # noqa: ANN401  # as the command's
        """Returns the answer; raises EOFError if the process died."""
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
        status: int | None = self._process.exitcode
        return status

    def leave(self) -> int | None:
        """Ends the worker in order, and returns the exit status."""
        self._pipe.close()
        return self.wait_exit()

    def kill(self) -> None:
        """Sends SIGKILL, waits for the end and closes the pipe. Can be repeated."""
        self._process.kill()
        self._process.join()
        self._pipe.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


def _serve(pipe: Connection, make: Make, arguments: tuple[Any, ...]) -> None:
    with make(pipe, *arguments) as worker:
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
