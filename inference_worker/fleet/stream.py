"""One request's way from the engine's thread to an event loop."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from threading import Lock

from inference_worker.engine.generation import Generation
from inference_worker.engine.request import FinishReason, Request
from inference_worker.fleet.async_engine import Piece


class EngineStream:
    """A listener whose tokens an event loop takes; what came together is taken together.

    ``on_token``, ``on_end`` and ``on_failure`` are called on the engine's thread, all else on
    the loop's.
    """

    def __init__(self, request: Request, reused_tokens: Callable[["EngineStream"], int]) -> None:
        """Begins on the running loop; ``reused_tokens`` is asked with the first token."""
        self.request = request
        # Of the engine's thread: the request's number within its engine.
        self.number: int | None = None
        self._reused_tokens = reused_tokens
        self._loop = asyncio.get_running_loop()
        self._came = asyncio.Event()
        self._mutex = Lock()
        self._tokens: list[int] = []
        self._reused: int | None = None
        self._end: tuple[Generation, FinishReason] | None = None
        self._error: Exception | None = None

    def on_token(self, token: int) -> None:
        """Hands a token over; raises ``RuntimeError`` where the loop is closed."""
        if self._reused is None:
            self._reused = self._reused_tokens(self)
        with self._mutex:
            self._tokens.append(token)
        self._loop.call_soon_threadsafe(self._came.set)

    def on_end(self, generation: Generation, reason: FinishReason) -> None:
        """Hands the end over."""
        self._end = generation, reason
        self._wake()

    def on_failure(self, error: Exception) -> None:
        """Hands over why there is no more."""
        self._error = error
        self._wake()

    @property
    def ended(self) -> bool:
        """Whether no token comes any more."""
        return self._end is not None or self._error is not None

    async def next(self) -> Piece:
        """Waits for what comes next; raises what made the request fail."""
        while True:
            # First the end, then the tokens: none is added after it.
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
        # A loop that is closed waits for nothing.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._came.set)
