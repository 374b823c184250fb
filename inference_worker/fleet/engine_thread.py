"""An engine in a thread of its own, for an event loop."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from threading import Condition, Lock, Thread
from typing import Final, NamedTuple

from inference_worker.engine.async_engine import EngineStats, Piece
from inference_worker.engine.engine import Engine
from inference_worker.engine.request import FinishReason, Generation, Request, ReusedTokens
from inference_worker.errors import DeviceLostError, EngineBusyError, EngineGoneError


class EngineStream:
    """A listener that passes a request's tokens to an event loop, several at once if it is slow.

    ``on_token``, ``on_end`` and ``on_failure`` are called on the engine's thread, everything else
    on the loop's.
    """

    def __init__(self, request: Request, reused: Callable[["EngineStream"], ReusedTokens]) -> None:
        """Starts on the running loop; calls ``reused`` with the first token."""
        self.request = request
        # Used by the engine's thread: the request's number within its engine.
        self.number: int | None = None
        self._find_reused = reused
        self._loop = asyncio.get_running_loop()
        self._came = asyncio.Event()
        self._mutex = Lock()
        self._tokens: list[int] = []
        self._reused: ReusedTokens | None = None
        self._end: tuple[Generation, FinishReason] | None = None
        self._error: Exception | None = None

    def on_token(self, token: int) -> None:
        """Passes a token on; raises ``RuntimeError`` if the loop is closed."""
        if self._reused is None:
            self._reused = self._find_reused(self)
        with self._mutex:
            self._tokens.append(token)
        self._loop.call_soon_threadsafe(self._came.set)

    def on_end(self, generation: Generation, reason: FinishReason) -> None:
        """Passes the end on."""
        self._end = generation, reason
        self._wake()

    def on_failure(self, error: Exception) -> None:
        """Passes the error on."""
        self._error = error
        self._wake()

    @property
    def ended(self) -> bool:
        """True if no more tokens follow."""
        return self._end is not None or self._error is not None

    async def next(self) -> Piece:
        """Waits for the next piece; raises the error that made the request fail."""
        while True:
            # Reads the end before the tokens: no token is added after the end.
            end, error = self._end, self._error
            with self._mutex:
                tokens, self._tokens = self._tokens, []
            if error is not None:
                raise error
            if tokens or end is not None:
                generation, reason = end or (None, None)
                return Piece(tokens, generation, reason, self._reused)
            await self._came.wait()
            self._came.clear()

    def _wake(self) -> None:
        # Nobody waits on a closed loop.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._came.set)


MAX_WAITING: Final = 256
# The pause of an engine that has work but cannot do it, if it does not name a time.
STALLED_SECONDS: Final = 0.05
# A step takes far less; ``close`` stops waiting for the thread after this time.
END_SECONDS: Final = 60.0

_logger = logging.getLogger(__name__)


class _Order(NamedTuple):
    """An order for the thread about a stream: add its request, or abort it."""

    stream: EngineStream
    adds: bool


class EngineThread:
    """An :class:`~inference_worker.engine.async_engine.AsyncEngine` in this process.

    The thread sleeps while it has nothing to do. An error of a request ends that request only. An
    error of the engine itself ends the thread and fails all requests; :attr:`ready` is then False.
    """

    def __init__(self, engine: Engine, *, max_waiting: int = MAX_WAITING) -> None:
        """Starts the thread, which is the only user of ``engine`` from now on.

        At most ``max_waiting`` requests wait besides those that the engine has places for, which a
        step gives them. Raises ``ValueError`` for less than 1.
        """
        if max_waiting < 1:
            raise ValueError(f"max_waiting is {max_waiting}: it must be at least 1")
        self._engine = engine
        self._longest = engine.longest
        self._most = max_waiting + engine.max_running
        self._changed = Condition()
        self._orders: list[_Order] = []
        # Requests of orders that the statistics do not include yet.
        self._unseen = 0
        self._counts = engine.stats
        self._open: set[EngineStream] = set()
        self._idle = asyncio.Event()
        self._accepting = True
        self._stopping = False
        self.failure: BaseException | None = None
        self._failed: Future[None] = Future()
        self._thread = Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence, prompt and output together."""
        return self._longest

    @property
    def ready(self) -> bool:
        """True if it accepts requests: not once it is closed, nor after the thread's end."""
        return self._accepting and self.failure is None

    async def generate(self, request: Request) -> AsyncGenerator[Piece, None]:
        """Yields a request's tokens as they come; closing it aborts the request.

        Raises as :class:`~inference_worker.engine.async_engine.AsyncEngine` says.
        """
        stream = self._submit(request)
        self._open.add(stream)
        self._idle.clear()
        try:
            while True:
                piece = await stream.next()
                yield piece
                if piece.reason is not None:
                    return
        finally:
            self._open.discard(stream)
            if not self._open:
                self._idle.set()
            if not stream.ended:
                self._order(stream, adds=False)

    async def stats(self) -> EngineStats:
        """Returns the engine's state after its last step, with the requests that wait now."""
        with self._changed:
            return replace(self._counts, waiting=self._counts.waiting + self._unseen)

    async def wait_failed(self) -> None:
        """Waits until an error has ended the thread; :attr:`failure` is that error from then on."""
        await asyncio.shield(asyncio.wrap_future(self._failed))

    async def close(self, grace: float = 0.0) -> None:
        """Accepts no more requests, waits ``grace`` seconds for running ones, then aborts the rest.

        Returns when the engine holds nothing and its thread has ended; may be repeated.
        """
        self._accepting = False
        if self._open and grace > 0:
            try:
                async with asyncio.timeout(grace):
                    await self._idle.wait()
            except TimeoutError:
                pass
        for stream in self._open:
            self._order(stream, adds=False)
        with self._changed:
            self._stopping = True
            self._changed.notify()
        await asyncio.to_thread(self._thread.join, END_SECONDS)

    def _submit(self, request: Request) -> EngineStream:
        with self._changed:
            if not self.ready:
                raise EngineGoneError("the engine takes no more requests")
            waiting = self._counts.waiting + self._unseen
            if waiting + self._counts.running >= self._most:
                raise EngineBusyError(f"{waiting} requests wait already")
            stream = EngineStream(request, self._reused)
            self._unseen += 1
            self._orders.append(_Order(stream, adds=True))
            self._changed.notify()
        return stream

    def _order(self, stream: EngineStream, *, adds: bool) -> None:
        with self._changed:
            self._orders.append(_Order(stream, adds))
            self._changed.notify()

    # What follows runs on the engine's thread.

    def _run(self) -> None:
        streams: set[EngineStream] = set()
        try:
            while self._wait():
                self._obey(streams)
                moved = self._engine.step() if self._engine.has_work else True
                streams = {each for each in streams if not each.ended}
                self._count(0)
                if not moved:
                    self._pause()
        except BaseException as error:  # noqa: BLE001 - fails all waiting requests
            self._fail(error, streams)

    def _wait(self) -> bool:
        """Sleeps until there is work; returns False if there never will be."""
        with self._changed:
            while not self._orders and not self._engine.has_work:
                if self._stopping:
                    return False
                self._changed.wait()
        return True

    def _pause(self) -> None:
        """Sleeps until the engine may have something to do, or an order arrives."""
        seconds = self._engine.next_look
        with self._changed:
            if not self._orders:
                self._changed.wait(STALLED_SECONDS if seconds is None else seconds)

    def _obey(self, streams: set[EngineStream]) -> None:
        with self._changed:
            orders, self._orders = self._orders, []
        streams.update(each.stream for each in orders if each.adds)
        for stream, adds in orders:
            if not adds:
                if stream.number is not None:
                    self._engine.abort(stream.number)
                continue
            try:
                stream.number = self._engine.add(stream.request, stream)
            except Exception as error:  # noqa: BLE001 - fails this request only
                stream.on_failure(error)
        self._count(sum(each.adds for each in orders))

    def _count(self, seen: int) -> None:
        counts = self._engine.stats
        with self._changed:
            self._counts = counts
            self._unseen -= seen

    def _reused(self, stream: EngineStream) -> ReusedTokens:
        """Returns how many tokens the cache saved a request that has its first token."""
        assert stream.number is not None  # it was added
        self._count(0)
        return self._engine.generation(stream.number).reused

    def _fail(self, error: BaseException, streams: set[EngineStream]) -> None:
        # The process's main function logs a lost device as it ends the process.
        if not isinstance(error, DeviceLostError):
            _logger.critical("engine_failed", exc_info=error)
        with self._changed:
            self.failure = error
            streams |= {each.stream for each in self._orders if each.adds}
            self._orders.clear()
        for stream in streams:
            if not stream.ended:
                stream.on_failure(EngineGoneError("the engine failed"))
        self._failed.set_result(None)
