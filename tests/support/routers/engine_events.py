"""A publisher of KV events as vLLM and SGLang send them, whose events a test chooses."""

import time
from typing import Any, Self

import msgspec
import zmq

from support.loopback import HOST

# Milliseconds to wait for a subscriber.
PATIENCE_MS = 30_000


class EngineEvents:
    """One engine's PUB socket on loopback. One thread uses it."""

    def __init__(self) -> None:
        self._context = zmq.Context()
        # It receives the subscriptions, so that nothing is sent before the first of them.
        self._socket = self._context.socket(zmq.XPUB)
        self.endpoint = f"tcp://{HOST}:{self._socket.bind_to_random_port(f'tcp://{HOST}')}"
        self._number = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._context.destroy(linger=0)

    def wait_subscribed(self) -> None:
        """Waits for a subscriber."""
        assert self._socket.poll(PATIENCE_MS), "nobody subscribed"
        self._socket.recv()

    def publish(self, *events: dict[str, Any]) -> None:
        """Sends a batch of events, which are maps."""
        payload = msgspec.msgpack.encode([time.time(), list(events), 0])
        self._socket.send_multipart([b"", self._number.to_bytes(8, "big"), payload])
        self._number += 1
