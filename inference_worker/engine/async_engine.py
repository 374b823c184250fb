"""The interface of an engine for an event loop, whether thread or process. Needs no torch."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from inference_worker.engine.request import FinishReason, Generation, Request, ReusedTokens


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """The state of an engine now, and its totals since it was made.

    ``waiting`` requests hold nothing; ``running`` requests have pages. ``held_sequences`` counts
    the sequences that hold pages: those that run. ``prompt_tokens`` counts the tokens of all
    prompts. Of these, ``matched_tokens`` were used in place and ``copied_tokens`` from a copy when
    their requests first ran; ``prefilled_tokens`` are the rest. Of the matched ones the store
    loaded ``disk_tokens`` and ``remote_tokens`` for their requests. ``computed_tokens`` counts all
    positions that the model ran, including decoding and repeated work. ``yielded`` requests waited
    for another worker's prefill, or for their namespace.

    The last fields are about engine processes. ``engines`` serve now, and ``engines_attached`` of
    them are attached to a store. ``engine_restarts`` counts processes that replaced one that ended.
    ``moved_requests`` counts how often a request continued in another process.
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
    disk_tokens: int = 0
    remote_tokens: int = 0
    engines: int = 1
    engines_attached: int = 0
    engine_restarts: int = 0
    moved_requests: int = 0


class Piece(NamedTuple):
    """The tokens of a request since the piece before it.

    The last piece has the generation and the reason why it ended. ``reused`` is how many tokens of
    the prompt were matched or copied. Each piece with tokens has it, for a caller that stops early.
    """

    token_ids: list[int]
    generation: Generation | None
    reason: FinishReason | None
    reused: ReusedTokens | None = None


class AsyncEngine(Protocol):
    """An engine in a thread or a process. One event loop uses it."""

    @property
    def longest(self) -> int:
        """The longest sequence in tokens, prompt and output together."""
        ...

    @property
    def ready(self) -> bool:
        """True if the engine accepts requests."""
        ...

    def generate(self, request: Request) -> AsyncGenerator[Piece, None]:
        """Yields a request's tokens as they are generated; closing it aborts the request.

        Raises ``RequestTooLongError``, ``BadRequestError`` for a request that the engine cannot
        continue, ``EngineBusyError`` if its queue is full, ``EngineGoneError`` if it ended, and the
        error that made the request fail.
        """
        ...

    async def stats(self) -> EngineStats:
        """Returns the engine's state and totals; raises ``EngineGoneError``."""
        ...
