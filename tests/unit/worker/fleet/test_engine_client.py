"""A fleet's connection to an engine process over a socket."""

import asyncio
import os
import socket
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from resource import RLIMIT_NOFILE, getrlimit, setrlimit

import pytest

from inference_worker.engine.request import Request
from inference_worker.errors import EngineGoneError
from inference_worker.fleet.engine_client import EngineClient, both_ways
from inference_worker.fleet.protocol import Frame, read_frame

LIMIT = 30.0


async def test_what_a_process_said_last_is_heard_whatever_it_is_asked_when_it_is_gone() -> None:
    """A process's last tokens arrive, even if its counts are read after its death."""
    ours, theirs = socket.socketpair()
    async with both_ways(ours) as (reader, writer):
        client = EngineClient(reader, writer)
        pieces = client.generate(Request(prompt_ids=[7], max_tokens=4))
        first = asyncio.create_task(anext(pieces))
        await asyncio.to_thread(theirs.recv, 1 << 16)
        theirs.sendall(Frame({"op": "tokens", "id": 1, "reused": [0, 0, 0]}, [8]).pack())
        theirs.close()
        looking = asyncio.create_task(client.stats())
        serving = asyncio.create_task(client.serve())
        async with asyncio.timeout(LIMIT):
            assert (await first).token_ids == [8]
            for gone in (anext(pieces), looking):
                with pytest.raises(EngineGoneError):
                    await gone
            await serving


async def test_who_writes_hears_nothing_of_what_is_said() -> None:
    """The reader gets each frame, even if writes and reads alternate often."""
    ours, theirs = socket.socketpair()
    with theirs:
        async with both_ways(ours) as (reader, writer), asyncio.timeout(LIMIT):
            for number in range(100):
                writer.write(b"asked")
                await asyncio.to_thread(theirs.recv, 5, socket.MSG_WAITALL)
                theirs.sendall(Frame({"number": number}).pack())
                assert await read_frame(reader) == Frame({"number": number}, array("I"))


async def test_both_ways_are_closed_where_what_uses_them_fails() -> None:
    """Both directions close if their user fails, so the process notices."""
    ours, theirs = socket.socketpair()
    with theirs:
        theirs.settimeout(LIMIT)
        with pytest.raises(ZeroDivisionError):
            async with both_ways(ours) as ways:
                raise ZeroDivisionError
        assert await asyncio.to_thread(theirs.recv, 1) == b""
        assert all(each is not None for each in ways)


@contextmanager
def no_more_descriptors() -> Iterator[None]:
    """Allows this process to open no more descriptors."""
    before = getrlimit(RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)
    setrlimit(RLIMIT_NOFILE, (lowest, before[1]))
    try:
        yield
    finally:
        setrlimit(RLIMIT_NOFILE, before)


async def test_one_way_is_closed_where_there_is_no_descriptor_for_the_other() -> None:
    """The first direction closes if no descriptor is left for the second."""
    ours, theirs = socket.socketpair()
    with theirs:
        theirs.settimeout(LIMIT)
        ways = both_ways(ours)
        with no_more_descriptors(), pytest.raises(OSError, match="Too many open files"):
            await ways.__aenter__()
        # Its transport closes it in the loop's next round.
        await asyncio.sleep(0)
        theirs.settimeout(0)
        assert theirs.recv(1) == b""
