"""An engine on a thread of its own: results, refusals and the end."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from threading import Event

import pytest

from inference_worker.engine.async_engine import Piece
from inference_worker.engine.engine import Engine
from inference_worker.engine.request import FinishReason, Request, ReusedTokens
from inference_worker.errors import (
    BadPromptError,
    EngineBusyError,
    EngineGoneError,
    RequestTooLongError,
)
from inference_worker.fleet.engine_thread import EngineThread
from inference_worker.model.model import PagedModel

LIMIT = 60.0
LONGEST = 400
PROMPT = list(b"What is the time?")


class GatedEngine(Engine):
    """An engine that counts its steps and runs them only while a gate is open.

    With ``shut_after`` it shuts the gate itself, in the step of that number. Requests of that step
    then wait, however long the test takes.
    """

    def __init__(self, model: PagedModel, max_running: int = 8) -> None:
        super().__init__(model, None, longest=LONGEST, private_tokens=4000, max_running=max_running)
        self.gate = Event()
        self.gate.set()
        self.steps = self.shut_after = 0
        self.fault: BaseException | None = None

    def step(self) -> bool:
        """Runs one step once the gate is open."""
        assert self.gate.wait(LIMIT)
        self.steps += 1
        if self.steps == self.shut_after:
            self.gate.clear()
        if self.fault is not None:
            raise self.fault
        return super().step()


@pytest.fixture
def engine(paged_models: dict[str, PagedModel]) -> GatedEngine:
    """Returns an engine that holds nothing."""
    return GatedEngine(paged_models["qwen3"])


@asynccontextmanager
async def running(engine: Engine, max_waiting: int = 100) -> AsyncIterator[EngineThread]:
    """Runs an engine, and checks that it holds nothing at its end."""
    thread = EngineThread(engine, max_waiting=max_waiting)
    try:
        yield thread
    finally:
        await thread.close()
        assert not thread._thread.is_alive()
        assert engine.private_slots_used == 0 or thread.failure is not None


def asked(max_tokens: int = 8, prompt: list[int] = PROMPT) -> Request:
    """Returns a request."""
    return Request(prompt_ids=prompt, max_tokens=max_tokens)


async def all_of(thread: EngineThread, request: Request) -> list[Piece]:
    """Collects a request's pieces to the end."""
    async with aclosing(thread.generate(request)) as pieces:
        return [piece async for piece in pieces]


async def until(thread: EngineThread, waiting: int, running: int) -> None:
    """Waits until that many requests wait and run. Only the engine's thread knows these counts."""
    while (found := await thread.stats()).waiting != waiting or found.running != running:  # noqa: ASYNC110
        await asyncio.sleep(0.001)


def tokens_of(pieces: list[Piece]) -> list[int]:
    """Returns the tokens of all pieces."""
    return [token for piece in pieces for token in piece.token_ids]


async def test_many_requests_have_what_each_has_alone(engine: GatedEngine) -> None:
    """Tokens arrive as they are chosen, and the last piece has the generation."""
    prompts = [PROMPT * count for count in (1, 2, 3)]
    alone = [engine.generate(prompt, 8).output_ids for prompt in prompts]
    async with running(engine) as thread:
        found = await asyncio.gather(*(all_of(thread, asked(8, each)) for each in prompts))
        for pieces, prompt, expected in zip(found, prompts, alone, strict=True):
            *before, last = pieces
            assert tokens_of(pieces) == expected
            assert all(piece.generation is None for piece in before)
            assert last.generation is not None
            assert last.generation.prompt_tokens == len(prompt)
            assert last.reason == FinishReason.LENGTH
            assert last.reused == ReusedTokens()
        await until(thread, waiting=0, running=0)
        assert (await thread.stats()).held_sequences == 0


async def test_it_sleeps_while_there_is_nothing_to_do(engine: GatedEngine) -> None:
    """The engine runs no step between two requests."""
    async with running(engine) as thread:
        await all_of(thread, asked(1))
        steps = engine.steps
        for _ in range(10):
            await thread.stats()
            await asyncio.sleep(0)
        assert engine.steps == steps
        await all_of(thread, asked(1))
        assert engine.steps > steps


async def test_a_request_that_cannot_be_is_refused(engine: GatedEngine) -> None:
    """An error of the engine reaches its caller, and other requests continue."""
    async with running(engine) as thread:
        assert thread.longest == LONGEST
        with pytest.raises(RequestTooLongError):
            await all_of(thread, asked(LONGEST))
        with pytest.raises(BadPromptError, match="token ids are from 0 to 255"):
            await all_of(thread, asked(1, [256]))
        assert len(tokens_of(await all_of(thread, asked(2)))) == 2


async def test_the_queue_is_bounded(paged_models: dict[str, PagedModel]) -> None:
    """A request is refused at once if the queue is full, and each waiting request is served."""
    engine = GatedEngine(paged_models["qwen3"], max_running=1)
    engine.shut_after = 1
    async with running(engine, max_waiting=2) as thread:
        async with aclosing(thread.generate(asked(300))) as first:
            await anext(first)
            waiting = [asyncio.create_task(all_of(thread, asked(2))) for _ in range(2)]
            await until(thread, waiting=2, running=1)
            with pytest.raises(EngineBusyError):
                await all_of(thread, asked(2))
            assert thread.ready
        engine.gate.set()
        found = await asyncio.gather(*waiting)
        assert [len(tokens_of(each)) for each in found] == [2, 2]
        assert len(tokens_of(await all_of(thread, asked(2)))) == 2


async def test_a_burst_on_an_idle_engine_has_its_places_too(engine: GatedEngine) -> None:
    """A burst fills all places before any step, and one more request is refused."""
    async with running(engine, max_waiting=1) as thread:
        engine.gate.clear()
        taken = [asyncio.create_task(all_of(thread, asked(2))) for _ in range(8 + 1)]
        await asyncio.sleep(0)
        with pytest.raises(EngineBusyError):
            await all_of(thread, asked(2))
        engine.gate.set()
        found = await asyncio.gather(*taken)
        assert [len(tokens_of(each)) for each in found] == [2] * 9


async def test_who_goes_away_is_aborted(engine: GatedEngine) -> None:
    """A request that is closed after a token, or cancelled before it, gives its pages back."""
    engine.shut_after = 1
    async with running(engine) as thread:
        async with aclosing(thread.generate(asked(300))) as pieces:
            await anext(pieces)
        early = asyncio.create_task(all_of(thread, asked(300)))
        await asyncio.sleep(0)
        assert (await thread.stats()).waiting == 1
        early.cancel()
        await asyncio.wait([early])
        engine.gate.set()
        await until(thread, waiting=0, running=0)
        assert engine.private_slots_used == 0


async def test_a_close_lets_what_runs_end(engine: GatedEngine) -> None:
    """A close lets running requests end within its grace, and refuses new ones."""
    async with running(engine) as thread:
        engine.gate.clear()
        first = asyncio.create_task(all_of(thread, asked(20)))
        await asyncio.sleep(0)
        closing = asyncio.create_task(thread.close(grace=LIMIT))
        await asyncio.sleep(0)
        assert not thread.ready
        with pytest.raises(EngineGoneError):
            await all_of(thread, asked(1))
        engine.gate.set()
        assert len(tokens_of(await first)) == 20
        await closing


async def test_a_close_without_grace_aborts(engine: GatedEngine) -> None:
    """A close without grace aborts running requests, which get the tokens so far."""
    engine.shut_after = 1
    async with running(engine) as thread:
        async with aclosing(thread.generate(asked(300))) as pieces:
            await anext(pieces)
            closing = asyncio.create_task(thread.close())
            await asyncio.sleep(0)
            engine.gate.set()
            await closing
            found = [piece async for piece in pieces]
        assert found[-1].reason == FinishReason.ABORT
        assert found[-1].generation is not None


async def test_an_engine_that_fails_fails_all(engine: GatedEngine) -> None:
    """A failed engine fails running and waiting requests. It is not ready, and its close ends."""
    engine.shut_after = 1
    async with running(engine) as thread:
        async with aclosing(thread.generate(asked(300))) as pieces:
            await anext(pieces)
            second = asyncio.create_task(all_of(thread, asked(2)))
            await asyncio.sleep(0)
            engine.fault = LookupError("a bug")
            engine.gate.set()
            with pytest.raises(EngineGoneError):
                [piece async for piece in pieces]
            with pytest.raises(EngineGoneError):
                await second
        assert not thread.ready
        assert thread.failure is engine.fault
        with pytest.raises(EngineGoneError):
            await all_of(thread, asked(2))


def test_a_queue_has_room_for_one(engine: GatedEngine) -> None:
    """A queue needs room for at least one request."""
    with pytest.raises(ValueError, match="at least 1"):
        EngineThread(engine, max_waiting=0)
