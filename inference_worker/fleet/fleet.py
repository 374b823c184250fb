"""Several engine processes behind one front: the requests of one that dies go on on another."""

import asyncio
import time
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import fields, replace
from typing import Final

from inference_worker.engine.async_engine import EngineStats, Piece
from inference_worker.engine.request import Request
from inference_worker.errors import EngineBusyError, EngineGoneError
from inference_worker.fleet.continuation import Continuation
from inference_worker.fleet.engine_client import EngineClient
from inference_worker.fleet.protocol import EngineSettings, LoadedModel
from inference_worker.fleet.supervisor import PROGRAM, EngineSupervisor, FindStore


def choose_engine(clients: Iterable[EngineClient], request: Request) -> EngineClient | None:
    """Chooses the one with the fewest tokens to compute, the first of several; None of none.

    What each has in its own memory does not count: what one has computed of a prompt, all find at
    the store.
    """
    del request
    return min(
        (each for each in clients if each.open),
        key=lambda each: each.outstanding_tokens,
        default=None,
    )


# What is so now and ends with a process; all other fields are totals, which only grow.
NOW: Final = frozenset(
    {"waiting", "running", "held_sequences", "private_slots_used", "engines", "engines_attached"}
)
NOTHING: Final = EngineStats(**dict.fromkeys((each.name for each in fields(EngineStats)), 0))


class FleetCounts:
    """Adds up counts; of a process that ended, what it told last stays in the totals."""

    def __init__(self) -> None:
        """Nothing is counted yet."""
        self._past = NOTHING
        self._last: dict[EngineClient, EngineStats] = {}

    def add(self, told: Mapping[EngineClient, EngineStats]) -> EngineStats:
        """Takes what the living told and returns the sums."""
        for ended in self._last.keys() - {each for each in self._last if each.open}:
            last = self._last.pop(ended)
            self._past = added([self._past, replace(last, **dict.fromkeys(NOW, 0))])
        self._last |= told
        return added([self._past, *self._last.values()])


def added(each: Iterable[EngineStats]) -> EngineStats:
    """Adds counts field by field."""
    all_of_them = list(each)
    return EngineStats(
        **{
            field.name: sum(getattr(one, field.name) for one in all_of_them)
            for field in fields(EngineStats)
        }
    )


# Processes that may die under one request before it is held to be what kills them.
MOST_MOVES: Final = 2
# How long a request whose process died waits for one that serves, where none does.
MOVE_SECONDS: Final = 120.0
# Between two looks of a begun request for room in a queue.
FULL_SECONDS: Final = 0.2
# Whoever reads counts does not wait for a process that is stopped.
STATS_SECONDS: Final = 2.0


class Fleet:
    """An :class:`AsyncEngine` of processes. One event loop uses it."""

    def __init__(
        self,
        engines: Sequence[EngineSettings],
        find_store: FindStore,
        program: Sequence[str] = PROGRAM,
    ) -> None:
        """Starts nothing; ``find_store`` is asked as each process has loaded its model."""
        self._changed = asyncio.Event()
        self.supervisors = [
            EngineSupervisor(each, find_store, self._note, program) for each in engines
        ]
        self._counts = FleetCounts()
        self._moves = 0

    async def start(self) -> LoadedModel:
        """Starts all, wait for the first that serves, and returns what it loaded.

        Raises ``WorkerError`` where one cannot be had, as of a model that is not there.
        """
        for each in self.supervisors:
            each.start()
        await self.wait_serving(1)
        return next(each.loaded for each in self.supervisors if each.loaded is not None)

    async def wait_serving(self, count: int) -> None:
        """Waits until ``count`` processes serve; raises ``WorkerError`` where they will not."""
        while sum(1 for _ in self._clients()) < count:
            for each in self.supervisors:
                if each.failure is not None:
                    raise each.failure
            await self._changed.wait()

    async def close(self) -> None:
        """Aborts what is under way, give all back, and end the processes."""
        await asyncio.gather(*(each.stop() for each in self.supervisors))

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence, prompt and output together; 0 before one is loaded."""
        return next(
            (each.loaded.longest for each in self.supervisors if each.loaded is not None), 0
        )

    @property
    def ready(self) -> bool:
        """Whether any process serves."""
        return next(self._clients(), None) is not None

    async def generate(self, request: Request) -> AsyncGenerator[Piece, None]:
        """Yields a request's tokens as they come, each once, whatever dies meanwhile.

        Closed before its end, the request is aborted. Raises what the engine raises,
        ``EngineBusyError`` only where the queues of all are full and it was not begun,
        ``EngineGoneError`` where no process serves or several died under it, and
        ``ContinuationError``.
        """
        begin = time.perf_counter()
        way = Continuation(request)
        full: set[EngineClient] = set()
        while (ended := way.ended) is None:
            client = await self._choose(request, way, full)
            try:
                async with aclosing(client.generate(way.next_request())) as pieces:
                    async for piece in pieces:
                        if not way.given and piece.token_ids:
                            way.first_token_seconds = time.perf_counter() - begin
                        new, reused = way.take(piece.token_ids), way.reused(piece.reused_tokens)
                        if piece.generation is not None:
                            yield Piece(new, way.whole(piece.generation), piece.reason, reused)
                            return
                        if new:
                            yield Piece(new, None, None, reused)
            except EngineGoneError:
                way.moves += 1
                self._moves += 1
                if way.moves > MOST_MOVES and way.ended is None:
                    raise
            except EngineBusyError:
                full.add(client)
                if not await self._may_have_room(way, full):
                    raise
        yield Piece([], way.whole(None), ended)

    async def stats(self) -> EngineStats:
        """Adds up what all processes count, those that ended included.

        Of one that does not answer in time, and of one that ended, it is what it told last.
        """
        clients = list(self._clients())
        asked = (asyncio.wait_for(each.stats(), STATS_SECONDS) for each in clients)
        told = await asyncio.gather(*asked, return_exceptions=True)
        living = {
            client: each
            for client, each in zip(clients, told, strict=True)
            if isinstance(each, EngineStats)
        }
        return replace(
            self._counts.add(living),
            engines=sum(1 for _ in self._clients()),
            engine_restarts=sum(each.restarts for each in self.supervisors),
            moved_requests=self._moves,
        )

    async def _choose(
        self, request: Request, way: Continuation, full: set[EngineClient]
    ) -> EngineClient:
        """Returns who takes a request; one that was begun waits for it, where nobody serves."""
        client = choose_engine((each for each in self._clients() if each not in full), request)
        if client is None and way.moves:
            try:
                async with asyncio.timeout(MOVE_SECONDS):
                    while (client := choose_engine(self._clients(), request)) is None:
                        await self._changed.wait()
            except TimeoutError:
                pass
        if client is None:
            raise EngineGoneError("no engine process serves now")
        return client

    async def _may_have_room(self, way: Continuation, full: set[EngineClient]) -> bool:
        """Returns whether any has room besides those; one that was begun waits until they have."""
        if full.issuperset(self._clients()):
            if not way.moves:
                return False
            full.clear()
            await asyncio.sleep(FULL_SECONDS)
        return True

    def _clients(self) -> Iterator[EngineClient]:
        clients = (each.client for each in self.supervisors)
        return (each for each in clients if each is not None and each.open)

    def _note(self) -> None:
        """Wakes whoever waits for a change."""
        self._changed.set()
        self._changed = asyncio.Event()
