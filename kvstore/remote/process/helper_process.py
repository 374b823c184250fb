"""The store's end of a helper: its process, its socket and the memory that both map."""

import json
import mmap
import os
import socket
import subprocess
import sys
from collections.abc import Generator, Mapping
from multiprocessing.connection import Connection
from threading import Lock
from time import monotonic
from typing import Final, NamedTuple

from kvstore.remote.errors import (
    DeadlinePassed,
    EngineClosed,
    EngineCut,
    EngineUnreachable,
    ReplyMalformed,
)
from kvstore.remote.process.messages import (
    DONE,
    ERROR,
    ITEM,
    READY,
    STOP,
    Message,
    error_of,
    receive,
    send,
)

# A helper that is asked to stop between two values does so in a moment, or is killed.
STOP_SECONDS: Final = 0.05
# A killed process ends at once, unless the kernel waits for a device or a file system for it.
DEATH_SECONDS: Final = 1.0
MOST_DYING: Final = 4
# Starts in a row, and the seconds after which one more is allowed.
MOST_STARTS: Final = 8
START_INTERVAL: Final = 2.0


class HelperCommand(NamedTuple):
    """An engine that helpers run: ``module:function``, and its keyword arguments as of JSON."""

    factory: str
    settings: Mapping[str, object]
    memory_bytes: int
    start_seconds: float = 30.0


class HelperProcess:
    """A running helper, for one thread at a time.

    ``memory`` is mapped by both. The helper may write to it until it ends or the call does.
    """

    def __init__(self, command: HelperCommand) -> None:
        """Starts a helper."""
        self.deadline = monotonic() + command.start_seconds
        self._is_busy = True
        self.is_killed = False
        memory_number = os.memfd_create("kvstore-helper")
        os.ftruncate(memory_number, command.memory_bytes)
        self.memory = memoryview(mmap.mmap(memory_number, command.memory_bytes))
        ours, theirs = socket.socketpair()
        try:
            self.process = subprocess.Popen(  # noqa: S603  # this program
                [
                    *(sys.executable, "-m", "kvstore.remote.process.helper"),
                    *(str(theirs.fileno()), str(memory_number), str(command.memory_bytes)),
                    json.dumps([sys.path, command.factory, dict(command.settings)]),
                ],
                pass_fds=[theirs.fileno(), memory_number],
                stdin=subprocess.DEVNULL,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
        finally:
            theirs.close()
            os.close(memory_number)
        self._connection = Connection(ours.detach())

    def wait_until_ready(self) -> None:
        """Waits for the engine. Raises a ``RemoteError``, the engine's own if it has one."""
        self._answer(READY)

    @property
    def is_reusable(self) -> bool:
        """No call is under way, and the helper runs."""
        return not (self._is_busy or self.is_killed)

    def is_quiet(self) -> bool:
        """Returns whether the helper runs and says nothing."""
        return self.process.poll() is None and not self._connection.poll()

    def interrupt(self) -> None:
        """Kills the helper, which ends the wait of the thread that uses it."""
        self.is_killed = True
        self.process.kill()

    def close(self) -> None:
        """Kills the helper. It can write to its memory until it ends, and to no other."""
        self.interrupt()
        self._connection.close()
        self.memory = memoryview(b"")

    def has_ended(self, end: float) -> bool:
        """Returns whether the process has ended. Waits until ``end`` for one that was killed."""
        try:
            self.process.wait(max(end - monotonic(), 0) if self.is_killed else 0)
        except subprocess.TimeoutExpired:
            return False
        return True

    def call(self, name: str, *arguments: object) -> object:
        """Runs a call without values in the helper; returns its result. Raises its error."""
        self._send([name, *arguments, self.deadline])
        return self._answer(DONE)[1]

    def results(self, name: str, *arguments: object) -> Generator[object, None, None]:
        """Runs a call with values; yields the result of each as it comes. Raises its error.

        If the caller stops early, the helper is asked to end the call, or is killed.
        """
        self._send([name, *arguments, self.deadline])
        try:
            while (message := self._answer(ITEM, DONE))[0] == ITEM:
                yield message[1]
        except GeneratorExit:
            self._stop()
            raise

    def _stop(self) -> None:
        self.deadline = min(self.deadline, monotonic() + STOP_SECONDS)
        try:
            self._send([STOP])
            while self._answer(ITEM, DONE)[0] == ITEM:
                pass
        except (DeadlinePassed, EngineCut, ReplyMalformed):
            self.interrupt()

    def _send(self, message: Message) -> None:
        self._is_busy = True
        try:
            send(self._connection, message)
        except OSError as error:
            raise self._ended() from error

    def _answer(self, *kinds: str) -> Message:
        """Returns the next message, of one of some kinds, or raises the error in it."""
        try:
            if not self._connection.poll(max(self.deadline - monotonic(), 0)):
                raise DeadlinePassed("the helper did not answer in time")
            message = receive(self._connection)
        except (EOFError, OSError) as error:
            raise self._ended() from error
        except ValueError as error:
            raise ReplyMalformed(f"the helper sent no message: {error}") from error
        self._is_busy = message[0] == ITEM
        if message[0] == ERROR:
            raise error_of(message)
        if message[0] not in kinds:
            self._is_busy = True
            raise ReplyMalformed(f"the helper sent {str(message)[:40]}")
        return message

    def _ended(self) -> EngineCut:
        return EngineCut(f"the helper ended: {self.process.poll()}")


class HelperStarts:
    """Starts helpers, also in place of those that were killed. One thread starts them."""

    def __init__(self, command: HelperCommand) -> None:
        self._command = command
        self._lock = Lock()
        self._helpers: list[HelperProcess] = []
        self._is_closed = False
        self._credit = float(MOST_STARTS)
        self._counted = monotonic()

    def start(self) -> HelperProcess:
        """Returns a new helper. Raises a ``RemoteError``, also if too many started or hang.

        Waits first for those that were killed, so that none writes to the engine any more.
        """
        if (dying := self._reap()) >= MOST_DYING:
            raise EngineUnreachable(f"{dying} killed helpers hang in the kernel: none is started")
        now = monotonic()
        self._credit = min(MOST_STARTS, self._credit + (now - self._counted) / START_INTERVAL)
        self._counted = now
        if self._credit < 1:
            raise EngineUnreachable(f"helpers ended {MOST_STARTS} times: one starts soon")
        self._credit -= 1
        with self._lock:
            if self._is_closed:
                raise EngineClosed("the engine was closed")
            made = HelperProcess(self._command)
            self._helpers.append(made)
        try:
            made.wait_until_ready()
        except BaseException:
            made.close()
            raise
        return made

    def close(self) -> None:
        """Kills all helpers, and waits a second at most for their ends."""
        with self._lock:
            self._is_closed = True
            helpers = list(self._helpers)
        for each in helpers:
            each.interrupt()
        self._reap()

    def _reap(self) -> int:
        """Waits a second at most for the killed helpers to end; returns how many have not."""
        end = monotonic() + DEATH_SECONDS
        with self._lock:
            helpers = list(self._helpers)
        ended = [each for each in helpers if each.has_ended(end)]
        with self._lock:
            self._helpers = [each for each in self._helpers if each not in ended]
            return sum(each.is_killed for each in self._helpers)
