"""A link between a publisher of KV events and its subscriber that loses batches when told to."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Lock, Thread

import zmq

# Milliseconds between two looks at whether the link ends.
LOOK_MS = 50


class LossyLink:
    """Forwards batches from a PUB socket to subscribers of its own. Any thread uses it."""

    def __init__(self, publisher: str) -> None:
        """Follows a publisher's endpoint."""
        self._context = zmq.Context()
        self._lock = Lock()
        self._losing: float = 0
        self.lost = 0
        self.forwarded = 0
        self._over = Event()
        self._from = self._context.socket(zmq.SUB)
        self._from.set_hwm(0)
        self._from.setsockopt(zmq.SUBSCRIBE, b"")
        self._from.connect(publisher)
        self._to = self._context.socket(zmq.XPUB)
        self._to.set_hwm(0)
        self.subscribed = Event()
        port = self._to.bind_to_random_port("tcp://127.0.0.1")
        self.endpoint = f"tcp://127.0.0.1:{port}"
        self._thread = Thread(target=self._forward, name="lossy-link", daemon=True)
        self._thread.start()

    def lose(self, batches: float) -> None:
        """Loses so many of the next batches: all of them for infinity, none for zero."""
        with self._lock:
            self._losing = batches

    def close(self) -> None:
        """Ends the link."""
        self._over.set()
        self._thread.join()
        self._context.destroy(linger=0)

    def _forward(self) -> None:
        poller = zmq.Poller()
        poller.register(self._from, zmq.POLLIN)
        poller.register(self._to, zmq.POLLIN)
        while not self._over.is_set():
            ready = dict(poller.poll(LOOK_MS))
            if self._to in ready and self._to.recv()[:1] == b"\x01":
                self.subscribed.set()
            if self._from in ready:
                frames = self._from.recv_multipart()
                with self._lock:
                    loses = self._losing > 0
                    self._losing -= loses
                    self.lost += loses
                    self.forwarded += not loses
                if not loses:
                    self._to.send_multipart(frames)


@contextmanager
def lossy_link(publisher: str) -> Iterator[LossyLink]:
    """Runs a link until the block ends."""
    link = LossyLink(publisher)
    try:
        yield link
    finally:
        link.close()
