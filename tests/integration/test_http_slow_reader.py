"""A streaming client that reads nothing does not delay the server's stop."""

import asyncio
import signal
import socket
from collections.abc import AsyncGenerator, Sequence

import pytest

from inference_worker.engine.async_engine import EngineStats, Piece
from inference_worker.engine.request import Request
from inference_worker.fleet.fleet import NOTHING
from inference_worker.http import connection
from inference_worker.http.app import build_app
from inference_worker.http.server import listening_socket, serve_app
from inference_worker.http.settings import served_model
from inference_worker.model.tokenizer import ByteTokenizer

LIMIT = 30.0
SMALL_BUFFER = 4096
BODY = b'{"model": "m", "prompt": "x", "max_tokens": 100000000, "stream": true}'
ASKED = (
    b"POST /v1/completions HTTP/1.1\r\nHost: here\r\nContent-Length: %d\r\n\r\n" % len(BODY) + BODY
)


class Endless:
    """An engine that never stops yielding."""

    longest = 1 << 30
    ready = True

    def __init__(self) -> None:
        self.closed = 0

    async def generate(self, request: Request) -> AsyncGenerator[Piece, None]:
        """Yields the same tokens again and again."""
        del request
        try:
            while True:
                yield Piece([1], None, None, 0)
        finally:
            self.closed += 1

    async def stats(self) -> EngineStats:
        """Returns zero counts."""
        return NOTHING


class Words(ByteTokenizer):
    """A tokenizer whose ids are long words."""

    def decode(self, ids: Sequence[int]) -> str:
        """Returns more text than sockets and transports hold."""
        return "w" * (len(ids) << 20)


async def test_a_server_ends_though_a_client_reads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server ends without waiting for a client that reads nothing, and aborts its request."""
    monkeypatch.setattr(connection, "END_SECONDS", 0.1)
    engine = Endless()
    served = served_model("m", Words(), frozenset(), engine.longest)
    listening = listening_socket("127.0.0.1", 0)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SMALL_BUFFER)
    serving = asyncio.create_task(serve_app(build_app(engine, served), listening, grace=0.1))
    loop = asyncio.get_running_loop()
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER)
        client.settimeout(0)
        await loop.sock_connect(client, listening.getsockname())
        await loop.sock_sendall(client, ASKED)
        # The answer has begun, and its first event is longer than anything holds.
        assert await loop.sock_recv(client, 8)
        signal.raise_signal(signal.SIGTERM)
        async with asyncio.timeout(LIMIT):
            await serving
    assert engine.closed == 1
