"""A bad line between clients and a store: it delays, drips, goes silent, or is cut."""

import contextlib
import os
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Condition, Thread

from kvstore_client.runtime_dir import RuntimeDir

PIECE_BYTES = 1 << 16
MAX_DESCRIPTORS = 64


@dataclass(frozen=True, kw_only=True)
class Line:
    """The faults of a line, in both directions. By default all bytes pass.

    ``delay`` is in seconds for each piece, ``piece_bytes`` how many go at a time.
    ``silent``: nothing passes, and nothing is lost. ``cut_after`` so many bytes of
    the store's, since the line is as it is, the connection ends. Of the store's bytes, one in
    ``flip_every`` is another one.
    """

    delay: float = 0.0
    piece_bytes: int = PIECE_BYTES
    silent: bool = False
    cut_after: int | None = None
    flip_every: int | None = None


GOOD = Line()
SILENT = Line(silent=True)


class SocketProxy:
    """Takes connections at ``path`` to the unix socket ``target``; passes descriptors on, too.

    Two threads for each connection. Any thread may use it.
    """

    def __init__(self, path: Path, target: Path) -> None:
        self.connections = 0
        self._target = target
        self._changed = Condition()
        self._line = GOOD
        self._passed = 0
        self._open: list[socket.socket] = []
        self._closed = False
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        self._listener.listen()
        self._threads = [Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    @property
    def line(self) -> Line:
        """The line's faults. A change applies to open connections at once."""
        return self._line

    @line.setter
    def line(self, line: Line) -> None:
        with self._changed:
            self._line = line
            self._passed = 0
            self._changed.notify_all()

    def retarget(self, target: Path) -> None:
        """Ends all connections. New ones lead to another socket."""
        self._target = target
        self.cut()

    def cut(self) -> None:
        """Ends all connections."""
        with self._changed:
            for each in self._open:
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Ends everything, and the threads."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._listener.shutdown(socket.SHUT_RDWR)
        self.cut()
        for each in self._threads:
            each.join()
        for connection in [self._listener, *self._open]:
            connection.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            store = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                store.connect(str(self._target))
            except OSError:  # no store there: as if nobody were here
                client.close()
                store.close()
                continue
            with self._changed:
                self.connections += 1
                self._open += [client, store]
                for one, other, of_store in ((client, store, False), (store, client, True)):
                    thread = Thread(target=self._pass, args=(one, other, of_store), daemon=True)
                    self._threads.append(thread)
                    thread.start()
            if self._closed:
                self.cut()

    def _pass(self, source: socket.socket, target: socket.socket, of_store: bool) -> None:  # noqa: FBT001  # a thread's argument
        with contextlib.suppress(OSError):
            while True:
                data, descriptors, _, _ = socket.recv_fds(
                    source, PIECE_BYTES, MAX_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC
                )
                try:
                    if not data or not self._send(target, data, descriptors, of_store=of_store):
                        break
                finally:
                    for each in descriptors:
                        os.close(each)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _send(
        self, target: socket.socket, data: bytes, descriptors: list[int], *, of_store: bool
    ) -> bool:
        """Sends data as the line lets it; returns False where the connection is to end."""
        while data:
            with self._changed:
                line = self._wait()
                if self._closed:
                    return False
                piece = data[: line.piece_bytes]
                if of_store and line.cut_after is not None:
                    piece = piece[: line.cut_after - self._passed]
                sent = piece
                if of_store:
                    sent = _flipped(piece, self._passed, line.flip_every)
                    self._passed += len(piece)
            if not piece:
                return False
            socket.send_fds(target, [sent], descriptors)
            descriptors, data = [], data[len(piece) :]
        return True

    def _wait(self) -> Line:
        """Waits, holding ``_changed``, until a piece may pass; returns the line as it is then."""
        line = self._line
        if line.delay:
            # A line that is better meanwhile passes it at once.
            self._changed.wait_for(lambda: self._closed or self._line is not line, line.delay)
        self._changed.wait_for(lambda: self._closed or not self._line.silent)
        return self._line


def _flipped(piece: bytes, passed: int, every: int | None) -> bytes:
    """Returns a piece with a bit of each ``every``th byte changed, behind ``passed`` bytes."""
    if every is None or not (places := range(every - 1 - passed % every, len(piece), every)):
        return piece
    changed = bytearray(piece)
    for place in places:
        changed[place] ^= 1
    return bytes(changed)


class Proxy:
    """Both sockets of a store, each over a line of its own, in the folder ``runtime_dir``."""

    def __init__(self, folder: Path, store: RuntimeDir) -> None:
        here = RuntimeDir(folder)
        self.runtime_dir = folder
        self.calls = SocketProxy(here.grpc_socket, store.grpc_socket)
        self.attach = SocketProxy(here.attach_socket, store.attach_socket)

    def set(self, line: Line) -> None:
        """Makes both lines alike."""
        self.calls.line = self.attach.line = line

    def close(self) -> None:
        """Ends everything."""
        self.calls.close()
        self.attach.close()


@contextmanager
def proxied(runtime_dir: Path) -> Iterator[Proxy]:
    """Puts a line between this process and the store of ``runtime_dir``, which need not run yet.

    The store takes this process for the one that is attached.
    """
    with tempfile.TemporaryDirectory(prefix="kv-proxy-") as folder:
        proxy = Proxy(Path(folder), RuntimeDir(runtime_dir))
        try:
            yield proxy
        finally:
            proxy.close()
