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
