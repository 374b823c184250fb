"""What an event loop asks of an engine, wherever it runs. It needs no torch."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from inference_worker.engine.request import FinishReason, Generation, Request


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """What an engine does now, and the totals since it was made.

    ``waiting`` requests hold nothing; ``running`` ones have pages. ``held_sequences`` counts
    those that hold something, which are those that run. Of all prompts' ``prompt_tokens``,
    ``matched_tokens`` were used in place and ``copied_tokens`` from a copy when their requests
    first ran, and ``prefilled_tokens`` are the rest. ``computed_tokens`` counts all positions that
    the model ran: decoding, and what was computed again, included. ``yielded`` requests waited
    for what another computed, or for their namespace.

    Of engines that are processes, ``engines`` serve now, and ``engines_attached`` of them have a
    store; ``engine_restarts`` were started in place of one that ended, and ``moved_requests``
    counts how often a request went on in another one.
    """

    waiting: int
    running: int
    held_sequences: int
    private_slots_used: int
    requests: int
    preemptions: int
    yielded: int
    prompt_tokens: int
    matched_tokens: int
    copied_tokens: int
    prefilled_tokens: int
    computed_tokens: int
    engines: int = 1
    engines_attached: int = 0
    engine_restarts: int = 0
    moved_requests: int = 0


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
