"""What a fleet hears of an engine process, over a socket."""

import asyncio
import socket

import pytest

from inference_worker.async_engine import EngineGoneError
from inference_worker.engine_link import EngineLink, both_ways
from inference_worker.frames import Frame
from inference_worker.request import Request

LIMIT = 30.0


def test_what_a_process_said_last_is_heard_whatever_it_is_asked_when_it_is_gone() -> None:
    """A look at its counts comes just after its death, and before that was noticed."""

    async def test() -> None:
        ours, theirs = socket.socketpair()
        async with both_ways(ours) as (reader, writer):
            link = EngineLink(reader, writer)
            pieces = link.generate(Request(prompt_ids=[7], max_tokens=4))
            first = asyncio.create_task(anext(pieces))
            await asyncio.to_thread(theirs.recv, 1 << 16)
            theirs.sendall(Frame({"op": "tokens", "id": 1, "reused": 0}, [8]).pack())
            theirs.close()
            looking = asyncio.create_task(link.stats())
            serving = asyncio.create_task(link.serve())
            async with asyncio.timeout(LIMIT):
                assert (await first).token_ids == [8]
                for gone in (anext(pieces), looking):
                    with pytest.raises(EngineGoneError):
                        await gone
                await serving

    asyncio.run(test())
