"""A fleet's reports of processes that die, with processes that have no model."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from engines import mortal_engine
from inference_worker.engine.request import FinishReason, Request
from inference_worker.errors import EngineBusyError, EngineGoneError, WorkerError
from inference_worker.fleet.fleet import MOST_MOVES, Fleet
from inference_worker.fleet.protocol import EngineSettings, LoadedModel

PROGRAM = (str(Path(mortal_engine.__file__)),)
PROMPT = [7, 8]


async def no_store(loaded: LoadedModel) -> None:
    """Provides no store."""
    del loaded


@asynccontextmanager
async def fleet_of(
    busy: Sequence[int], find_store: Callable[[LoadedModel], Awaitable[None]] = no_store
) -> AsyncIterator[Fleet]:
    """Runs a fleet. Each process first refuses the given number of requests."""
    settings = [EngineSettings(model=str(each), name="engine") for each in busy]
    fleet = Fleet(settings, find_store, PROGRAM)
    try:
        await fleet.start()
        await fleet.wait_serving(len(busy))
        yield fleet
    finally:
        await fleet.close()


async def test_the_last_death_is_no_failure_where_nothing_is_left_to_compute() -> None:
    """A request succeeds if the last allowed death comes after its last token."""
    async with fleet_of([0] * (MOST_MOVES + 1)) as fleet:
        request = Request(prompt_ids=PROMPT, max_tokens=MOST_MOVES + 1)
        pieces = [piece async for piece in fleet.generate(request)]
        assert [each.token_ids for each in pieces] == [[2], [3], [4], []]
        assert pieces[-1].reason is FinishReason.LENGTH
        assert pieces[-1].generation is not None
        assert pieces[-1].generation.output_ids == [2, 3, 4]
        # The last to die may not have been missed yet.
        while sum(each.restarts for each in fleet.supervisors) < MOST_MOVES:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await fleet.wait_serving(MOST_MOVES + 1)
        others = fleet.generate(Request(prompt_ids=PROMPT, max_tokens=9))
        assert [(await anext(others)).token_ids for _ in pieces[1:]] == [[2], [3], [4]]
        with pytest.raises(EngineGoneError):
            await anext(others)


async def test_a_token_id_that_is_none_is_refused_and_nobody_dies() -> None:
    """An impossible token id is refused before it reaches a process."""
    async with fleet_of([0]) as fleet:
        for wrong in (-1, 1 << 32):
            with pytest.raises(ValueError, match="token id"):
                await anext(fleet.generate(Request(prompt_ids=[wrong], max_tokens=1)))
        assert fleet.ready


async def test_a_store_that_cannot_be_found_is_told_to_who_starts() -> None:
    """An error while finding the store reaches the caller who starts the fleet."""

    async def broken(loaded: LoadedModel) -> None:
        del loaded
        raise OSError(28, "No space left on device")

    with pytest.raises(WorkerError, match="No space left"):
        async with fleet_of([0], broken):
            pytest.fail("it serves")


async def test_a_full_queue_is_another_processes_chance() -> None:
    """A request is refused only if all queues are full. A running one waits for room."""
    async with fleet_of([2, 1]) as fleet:
        short = Request(prompt_ids=PROMPT, max_tokens=1)
        # The first is full twice, the second once.
        with pytest.raises(EngineBusyError):
            await anext(fleet.generate(short))
        ids = [each async for piece in fleet.generate(short) for each in piece.token_ids]
        assert ids == [2]
    async with fleet_of([0, 3]) as fleet:
        request = Request(prompt_ids=PROMPT, max_tokens=2)
        ids = [each async for piece in fleet.generate(request) for each in piece.token_ids]
        assert ids == [2, 3]
