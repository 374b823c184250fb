"""What an event loop asks of an engine, wherever it runs. It needs no torch."""

from collections.abc import AsyncGenerator
from typing import NamedTuple, Protocol

from inference_worker.engine.generation import Generation
from inference_worker.engine.request import FinishReason, Request
from inference_worker.engine.stats import EngineStats
from inference_worker.errors import EngineBusyError, EngineGoneError

__all__ = ["AsyncEngine", "EngineBusyError", "EngineGoneError", "Piece"]


class Piece(NamedTuple):
    """What came of a request since the piece before it.

    The last one has the generation and why it ended. ``reused_tokens`` is how many of the prompt's
    were matched or copied, in each piece with tokens, so that who stops early knows it too.
    """

    token_ids: list[int]
    generation: Generation | None
    reason: FinishReason | None
    reused_tokens: int | None = None


class AsyncEngine(Protocol):
    """An engine on a thread or in a process of its own. One event loop uses it."""

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence, prompt and output together."""
        ...

    @property
    def ready(self) -> bool:
        """Whether it takes requests."""
        ...

    def generate(self, request: Request) -> AsyncGenerator[Piece, None]:
        """Gives a request's tokens as they come; closing it aborts the request.

        Raises ``RequestTooLongError``, ``BadRequestError`` for what the engine cannot continue,
        ``EngineBusyError`` where too many wait, ``EngineGoneError`` where it ended, and what made
        the request fail.
        """
        ...

    async def stats(self) -> EngineStats:
        """Says what the engine does now, and its totals; raises ``EngineGoneError``."""
        ...
