"""A fleet whose processes die, refuse and come back. Their engine counts and has no model."""

import asyncio
import os
import signal
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest

from engines.counting_engine import BUSY, LONGEST, REUSED, next_token
from inference_worker.engine.request import FinishReason, Generation, Request, SamplingOptions
from inference_worker.errors import (
    EngineBusyError,
    EngineGoneError,
    ProcessEndedError,
    RequestTooLongError,
    WorkerError,
)
from inference_worker.fleet import supervisor
from inference_worker.fleet.fleet import Fleet
from inference_worker.fleet.protocol import EngineSettings, LoadedModel
from kvstore_client.testing import wait_until

PROGRAM = (str(Path(__file__).parents[1] / "support" / "engines" / "counting_engine.py"),)
PATIENCE = 60.0


async def no_store(loaded: LoadedModel) -> None:
    """Provides no store."""
    del loaded


@asynccontextmanager
async def fleet_of(count: int, model: str = "counting") -> AsyncGenerator[Fleet, None]:
    """Runs a fleet whose processes all serve."""
    settings = [EngineSettings(model=model, name=f"engine {each}") for each in range(count)]
    fleet = Fleet(settings, no_store, PROGRAM)
    try:
        await fleet.start()
        await fleet.wait_serving(count)
        yield fleet
    finally:
        await fleet.close()


def expected(request: Request) -> list[int]:
    """Returns a request's expected tokens."""
    ids = list(request.prompt_ids)
    for place in range(request.max_tokens):
        ids.append(next_token(ids, request, place))
    return ids[len(request.prompt_ids) :]


class Heard:
    """The answer to one request."""

    def __init__(self) -> None:
        self.pieces: list[list[int]] = []
        self.generation: Generation | None = None
        self.reason: FinishReason | None = None

    @property
    def ids(self) -> list[int]:
        """Returns all tokens, piece after piece."""
        return [each for piece in self.pieces for each in piece]

    async def listen(self, fleet: Fleet, request: Request) -> "Heard":
        """Receives all of a request's answer."""
        async with aclosing(fleet.generate(request)) as pieces:
            async for piece in pieces:
                assert self.generation is None
                assert piece.reused == REUSED
                self.pieces.append(piece.token_ids)
                self.generation, self.reason = piece.generation, piece.reason
        return self

    async def wait_for(self, count: int) -> None:
        """Waits until that many tokens arrived."""
        await until(lambda: len(self.ids) >= count)


async def until(condition: Callable[[], bool]) -> None:
    """Waits until a condition is true."""
    assert await asyncio.to_thread(wait_until, condition)


def busy_pid(fleet: Fleet) -> int:
    """Returns the process that has work."""
    (pid,) = [
        each.pid
        for each in fleet.supervisors
        if each.client is not None and each.client.outstanding_tokens and each.pid is not None
    ]
    return pid


async def test_requests_are_spread_and_answered() -> None:
    """Requests are spread evenly and counted, and an engine's refusal is raised."""
    async with fleet_of(2) as fleet:
        assert (fleet.ready, fleet.longest) == (True, LONGEST)
        asked = [Request(prompt_ids=[1, 2, number], max_tokens=9) for number in range(6)]
        heard = await asyncio.gather(*(Heard().listen(fleet, each) for each in asked))
        for request, each in zip(asked, heard, strict=True):
            assert each.ids == expected(request)
            assert each.reason is FinishReason.LENGTH
            assert each.generation is not None
            assert each.generation.output_ids == each.ids
        clients = [each.client for each in fleet.supervisors if each.client is not None]
        assert [(await each.stats()).requests for each in clients] == [3, 3]
        assert (await fleet.stats()).requests == 6
        assert [each.outstanding_tokens for each in clients] == [0, 0]
        with pytest.raises(EngineBusyError):
            await Heard().listen(fleet, Request(prompt_ids=[BUSY], max_tokens=1))
        with pytest.raises(RequestTooLongError) as raised:
            await Heard().listen(fleet, Request(prompt_ids=[1], max_tokens=LONGEST))
        assert raised.value.wanted == LONGEST + 1


@pytest.mark.parametrize(
    "sampling",
    [SamplingOptions(), SamplingOptions(temperature=1.0, seed=5)],
    ids=["greedy", "seeded"],
)
async def test_a_request_outlives_two_processes(sampling: SamplingOptions) -> None:
    """A request keeps its tokens through two killed processes, which are replaced."""
    async with fleet_of(2) as fleet:
        request = Request(prompt_ids=[7, 1], max_tokens=300, sampling=sampling)
        heard = Heard()
        listening = asyncio.create_task(heard.listen(fleet, request))
        for count in (40, 120):
            await heard.wait_for(count)
            assert (await fleet.stats()).running == 1
            os.kill(busy_pid(fleet), signal.SIGKILL)
        await listening
        assert heard.ids == expected(request)
        assert heard.reason is FinishReason.LENGTH
        assert heard.generation is not None
        assert heard.generation.prompt_tokens == 2
        assert heard.generation.output_ids == heard.ids
        counts = await fleet.stats()
        assert (counts.requests, counts.running) == (3, 0)
        assert (counts.moved_requests, counts.engines_attached) == (2, 0)
        await fleet.wait_serving(2)
        counts = await fleet.stats()
        assert (counts.engines, counts.engine_restarts) == (2, 2)


async def test_what_kills_processes_is_not_given_to_all() -> None:
    """A request fails with the third process that dies under it, and the fleet serves again."""
    async with fleet_of(1) as fleet:
        heard = Heard()
        request = Request(prompt_ids=[7, 1], max_tokens=900)
        listening = asyncio.create_task(heard.listen(fleet, request))
        for count in (1, 2, 3):
            await heard.wait_for(count * 20)
            os.kill(busy_pid(fleet), signal.SIGKILL)
            # Where none serves, new requests are refused; the one that was begun waits.
            await until(lambda: not fleet.ready)
            with pytest.raises(EngineGoneError):
                await Heard().listen(fleet, request)
        with pytest.raises(EngineGoneError):
            await listening
        assert heard.ids == expected(request)[: len(heard.ids)]
        await fleet.wait_serving(1)
        short = Request(prompt_ids=[1], max_tokens=3)
        assert (await Heard().listen(fleet, short)).ids == expected(short)


async def test_a_process_that_stands_still_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that hangs with an open socket is killed, and its request continues elsewhere."""
    monkeypatch.setattr(supervisor, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(supervisor, "SILENT_SECONDS", 5.0)
    async with fleet_of(2) as fleet:
        heard = Heard()
        request = Request(prompt_ids=[7, 1], max_tokens=300)
        listening = asyncio.create_task(heard.listen(fleet, request))
        await heard.wait_for(20)
        os.kill(busy_pid(fleet), signal.SIGSTOP)
        await listening
        assert heard.ids == expected(request)


async def test_a_client_that_leaves_is_aborted() -> None:
    """A request whose client leaves is aborted, and its process has no more work for it."""
    async with fleet_of(1) as fleet:
        request = Request(prompt_ids=[7, 1], max_tokens=900)
        async with aclosing(fleet.generate(request)) as pieces:
            assert (await anext(pieces)).token_ids == expected(request)[:1]
            assert (await fleet.stats()).running == 1
        assert fleet.supervisors[0].client is not None
        assert fleet.supervisors[0].client.outstanding_tokens == 0
        assert (await fleet.stats()).running == 0


async def test_what_is_not_served_is_said() -> None:
    """A refused model, or a process that ends at its start, makes the fleet's start fail."""
    for model, error in (("refused", WorkerError), ("dies", ProcessEndedError)):
        with pytest.raises(error, match=r"no such model|status 3"):
            async with fleet_of(1, model):
                pass
