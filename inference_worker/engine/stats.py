"""What an engine counts."""

from dataclasses import dataclass


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
