"""Idle connections to the HTTP server do not delay its stop. Open requests are answered."""

import asyncio
import signal
from collections.abc import AsyncGenerator

import pytest

from inference_worker.engine.async_engine import EngineStats, Piece
from inference_worker.engine.request import FinishReason, Generation, Request
from inference_worker.fleet.fleet import NOTHING
from inference_worker.http import server
from inference_worker.http.app import build_app
from inference_worker.http.server import listening_socket, serve_app
from inference_worker.http.settings import served_model
from inference_worker.model.tokenizer import ByteTokenizer

LIMIT = 60.0
HEAD_SECONDS = 1.0
BODY = b'{"model": "m", "prompt": "x", "max_tokens": 1}'
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: here\r\nContent-Length: %d\r\n\r\n" % len(BODY)
HEALTH = b"GET /health HTTP/1.1\r\nHost: here\r\n\r\n"


class Slow:
    """An engine that answers when the test allows it."""

    longest = 100
    ready = True

    def __init__(self) -> None:
        self.may_answer = asyncio.Event()

    async def generate(self, request: Request) -> AsyncGenerator[Piece, None]:
        """Yields one token."""
        await self.may_answer.wait()
        found = Generation(
            prompt_tokens=len(request.prompt_ids),
            matched_tokens=0,
            prefilled_tokens=1,
            matched_pages=[],
        )
        yield Piece([65], found, FinishReason.LENGTH, 0)

    async def stats(self) -> EngineStats:
        """Returns zero counts."""
        return NOTHING


async def test_who_asks_nothing_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Idle connections, a half-sent head included, are not waited for. A pending answer is."""
    monkeypatch.setattr(server, "HEAD_SECONDS", HEAD_SECONDS)
    engine = Slow()
    served = served_model("m", ByteTokenizer(), frozenset(), engine.longest)
    listening = listening_socket("127.0.0.1", 0)
    host, port = listening.getsockname()
    serving = asyncio.create_task(serve_app(build_app(engine, served), listening, grace=0))
    asking, told = await asyncio.open_connection(host, port)
    told.write(HEAD + BODY)
    for sent in (b"", HEALTH[:-2], HEALTH + HEALTH[:-2]):
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(sent)
        # To its end, which the server makes.
        answered = await reader.read()
        assert answered.startswith(b"HTTP/1.1 200" if sent.startswith(HEALTH) else b"")
        assert bool(answered) == sent.startswith(HEALTH)
        writer.close()
    engine.may_answer.set()
    assert (await asking.readline()).startswith(b"HTTP/1.1 200")
    told.close()
    signal.raise_signal(signal.SIGTERM)
    await serving
