"""Several engine processes as one engine; requests of a process that dies move to another."""

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
    """Returns the process with the fewest tokens to compute, the first of several, or None.

    Pages in a process's own memory do not count: prompts computed by one process are cached for all
    in the store.
    """
    del request
    return min(
        (each for each in clients if each.open),
        key=lambda each: each.outstanding_tokens,
        default=None,
    )


# Fields that describe the present and end with a process; all others are totals.
NOW: Final = frozenset(
    {"waiting", "running", "held_sequences", "private_slots_used", "engines", "engines_attached"}
)
NOTHING: Final = EngineStats(**dict.fromkeys((each.name for each in fields(EngineStats)), 0))


class FleetCounts:
    """Adds up statistics; a process that ended keeps its last totals in the sum."""

    def __init__(self) -> None:
        """Starts at zero."""
        self._past = NOTHING
        self._last: dict[EngineClient, EngineStats] = {}

    def add(self, told: Mapping[EngineClient, EngineStats]) -> EngineStats:
        """Stores the statistics of the living processes and returns the sums."""
        for ended in self._last.keys() - {each for each in self._last if each.open}:
            last = self._last.pop(ended)
            self._past = added([self._past, replace(last, **dict.fromkeys(NOW, 0))])
        self._last |= told
        return added([self._past, *self._last.values()])


def added(each: Iterable[EngineStats]) -> EngineStats:
    """Adds statistics field by field."""
    all_of_them = list(each)
    return EngineStats(
        **{
            field.name: sum(getattr(one, field.name) for one in all_of_them)
            for field in fields(EngineStats)
        }
    )


# Deaths of processes under one request before the request itself is the suspect.
MOST_MOVES: Final = 2
# Seconds that a request whose process died waits for another process, if none serves.
MOVE_SECONDS: Final = 120.0
# Seconds between two tries of a started request to enter a full queue.
FULL_SECONDS: Final = 0.2
# Seconds to wait for the statistics of a process, which may be stopped.
STATS_SECONDS: Final = 2.0


class Fleet:
    """An :class:`AsyncEngine` of processes. One event loop uses it."""

    def __init__(
        self,
        engines: Sequence[EngineSettings],
        find_store: FindStore,
        program: Sequence[str] = PROGRAM,
    ) -> None:
        """Starts nothing; calls ``find_store`` when a process has loaded its model."""
        self._changed = asyncio.Event()
        self.supervisors = [
            EngineSupervisor(each, find_store, self._note, program) for each in engines
        ]
        self._counts = FleetCounts()
        self._moves = 0

    async def start(self) -> LoadedModel:
        """Starts all processes and waits for the first that serves; returns its loaded model.

        Raises ``WorkerError`` if a process cannot start, for example because its model is missing.
        """
        for each in self.supervisors:
            each.start()
        await self.wait_serving(1)
        return next(each.loaded for each in self.supervisors if each.loaded is not None)

    async def wait_serving(self, count: int) -> None:
        """Waits until ``count`` processes serve; raises ``WorkerError`` if they cannot."""
        while sum(1 for _ in self._clients()) < count:
            for each in self.supervisors:
                if each.failure is not None:
                    raise each.failure
            await self._changed.wait()

    async def close(self) -> None:
        """Aborts all requests, releases everything, and ends the processes."""
        await asyncio.gather(*(each.stop() for each in self.supervisors))

    @property
    def longest(self) -> int:
        """The longest sequence in tokens, with its output; 0 before a model is loaded."""
        return next(
            (each.loaded.longest for each in self.supervisors if each.loaded is not None), 0
        )

    @property
    def ready(self) -> bool:
        """True if any process serves."""
        return next(self._clients(), None) is not None

    async def generate(self, request: Request) -> AsyncGenerator[Piece, None]:
        """Yields a request's tokens as they come, each once, even if processes die meanwhile.

        Closing it early aborts the request. Raises the engine's errors, ``EngineBusyError`` only if
        all queues are full and the request has not started, ``EngineGoneError`` if no process
        serves or several died under it, and ``ContinuationError``.
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
                        new, reused = way.take(piece.token_ids), way.reused(piece.reused)
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
        """Adds up the statistics of all processes, including those that ended.

        A process that ended, or does not answer in time, counts with its last statistics.
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
        """Returns the process for a request; a request that moved waits for one if none serves."""
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
        """Returns whether another queue may have room; a request that moved waits until one has."""
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
        """Wakes all that wait for a change."""
        self._changed.set()
        self._changed = asyncio.Event()
