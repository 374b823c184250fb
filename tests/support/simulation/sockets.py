"""The attach socket between simulated processes: real sockets, simulated waiting.

Frames, descriptors and hang-ups go through the kernel. When each side looks is
the scheduler's to say, and who is at the other end is told here.
"""

import os
import select
import selectors
import socket
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from typing import Any

from kvstore.errors import PeerRefused
from kvstore.rpc.attach.event_loop import Timer
from kvstore.rpc.attach.peer import Peer
from simulation import current
from simulation.kernel import Process, SimThread

# Who connected, in that order, and was not accepted yet.
connecting: deque["SimProcess"] = deque()
# What is to be called when something happened on some socket.
listeners: list[Callable[[], None]] = []


def stir() -> None:
    """Wakes all threads that wait for a socket, each in its own time."""
    for each in listeners:
        each()


class SimProcess(Process):
    """A process as the store sees it: a pid, a uid, and a descriptor that tells its death."""

    numbers = count(1)

    def __init__(self, name: str, uid: int) -> None:
        super().__init__(current.kernel(), name)
        self.uid = uid
        self.pid = next(self.numbers)
        self.pidfd = os.eventfd(0, os.EFD_CLOEXEC)
        self.sockets: list[ClientSocket] = []
        self.at_death.append(self._die)

    def _die(self) -> None:
        for each in self.sockets:
            each.close()
        os.eventfd_write(self.pidfd, 1)
        stir()

    def hang_up(self) -> None:
        """Breaks its connections."""
        for each in self.sockets:
            each.cut()

    def close(self) -> None:
        """Closes the descriptor, so nobody watches the process any more."""
        os.close(self.pidfd)


def identify(connection: socket.socket, *, overflow: int) -> Peer:
    """Returns who connected, in the place of the kernel."""
    del connection, overflow
    process = connecting.popleft()
    if not process.alive:
        raise PeerRefused(why="the peer's process is gone", pid=process.pid)
    return Peer(process.pid, process.uid, os.dup(process.pidfd))


class ClientSocket:
    """A client's end, which waits as simulated threads do."""

    def __init__(self, family: int, kind: int) -> None:
        self._kernel = current.kernel()
        self._kernel.require_life()
        assert self._kernel.running is not None
        process = self._kernel.running.process
        assert isinstance(process, SimProcess)
        self._process = process
        self._socket = socket.socket(family, kind)
        self._socket.settimeout(0)
        self._timeout: float | None = None
        self._waiting: SimThread | None = None
        process.sockets.append(self)
        listeners.append(self._look)

    def fileno(self) -> int:
        """Returns the descriptor, for who looks whether anything came."""
        return self._socket.fileno()

    def settimeout(self, timeout: float | None) -> None:
        """Bound every wait."""
        self._timeout = timeout

    def connect(self, path: str) -> None:
        """Connect."""
        self._kernel.sleep(self._kernel.turn())
        self._socket.connect(path)
        connecting.append(self._process)
        stir()

    def sendall(self, data: bytes) -> None:
        """Sends; frames are small, so that it never waits."""
        self._kernel.require_life()
        self._socket.sendall(data)
        stir()

    def recvmsg(self, size: int, ancillary_size: int, flags: int) -> Any:  # noqa: ANN401 - as in socket
        """Receives, waiting for something."""
        end = None if self._timeout is None else self._kernel.now + self._timeout
        while True:
            with suppress(BlockingIOError):
                return self._socket.recvmsg(size, ancillary_size, flags)
            self._waiting = self._kernel.running
            left = None if end is None else end - self._kernel.now
            if left is not None and left <= 0:
                raise TimeoutError
            self._kernel.park(left)

    def shutdown(self, how: int) -> None:
        """Ends the connection, and whoever waits for it."""
        self._socket.shutdown(how)
        stir()

    def cut(self) -> None:
        """Breaks the connection, if there is one."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        stir()

    def close(self) -> None:
        """Closes it. Can be repeated."""
        self._socket.close()
        if self._look in listeners:
            listeners.remove(self._look)
        if self._waiting is not None and self._process.alive:
            self._kernel.wake(self._waiting)
        self._waiting = None
        stir()

    def _look(self) -> None:
        if self._waiting is not None:
            waiting, self._waiting = self._waiting, None
            self._kernel.wake(waiting)


class Loop:
    """The attach server's loop: looks at its descriptors when something was stirred."""

    def __init__(self, clock: Callable[[], float], woken: Callable[[], None]) -> None:
        self.failure_count = 0
        self.last_tick = clock()
        self._kernel = current.kernel()
        self._woken = woken
        self._wake_due = False
        self._look_due = False
        self._open = True
        self._watched: dict[int, tuple[int, Callable[[], None]]] = {}
        listeners.append(self._stirred)

    def watch(
        self, descriptor: int, action: Callable[[], None], events: int = selectors.EVENT_READ
    ) -> None:
        """Calls ``action`` whenever the descriptor is ready."""
        wanted = select.POLLIN if events & selectors.EVENT_READ else select.POLLOUT
        self._watched[descriptor] = (wanted, action)
        self._stirred()

    def forget(self, descriptor: int) -> None:
        """Watches it no more."""
        self._watched.pop(descriptor, None)

    def at(self, moment: float, action: Callable[[], None]) -> Timer:
        """Calls ``action`` at a moment."""
        timer = Timer(action)
        self._kernel.after(moment - self._kernel.now, lambda: self._ring(timer))
        return timer

    def cancel(self, timer: Timer) -> None:
        """Cancels the timer."""
        timer.action = None

    def _ring(self, timer: Timer) -> None:
        if self._open and timer.action is not None:
            timer.action()

    def wake(self) -> None:
        """Calls ``woken`` soon."""
        self._wake_due = True
        self._stirred()

    def stop(self) -> None:
        """Looks no more."""
        self._open = False

    def run(self) -> None:
        """Return: what is to be done is done by events."""

    def close(self) -> None:
        """Closes the loop."""
        listeners.remove(self._stirred)

    def _stirred(self) -> None:
        if self._open and not self._look_due:
            self._look_due = True
            self._kernel.after(self._kernel.turn(), self._round)

    def _round(self) -> None:
        self._look_due = False
        if not self._open:
            return
        woken, self._wake_due = self._wake_due, False
        if woken:
            self._woken()
        poll = select.poll()
        for descriptor, (events, _) in self._watched.items():
            poll.register(descriptor, events)
        ready = {descriptor for descriptor, _ in poll.poll(0)}
        # In the order of watching: numbers of descriptors are the machine's.
        for descriptor, (_, action) in list(self._watched.items()):
            if descriptor in ready:
                action()
        if ready or woken:
            stir()


class Unstarted:
    """A thread of the server whose work is done by events; its end comes at ``join``."""

    def __init__(self, *, target: Callable[[], None], name: str, daemon: bool) -> None:
        del name, daemon
        self._target = target

    def start(self) -> None:
        """Does nothing yet."""

    def is_alive(self) -> bool:
        """Returns that it goes on."""
        return True

    def join(self) -> None:
        """Does what the thread does once it was told to stop."""
        self._target()
