"""That somebody else is computing more of a sequence than is cached."""

from dataclasses import dataclass
from typing import Self

from kvstore.v1 import prefix_cache_pb2

MILLISECOND = 1e-3


@dataclass(frozen=True, slots=True)
class InFlight:
    """Another open reservation, of this client or another, that goes on with a sequence.

    All counts are tokens from the sequence's beginning, in whole pages: ``token_count``
    will have been computed, ``inserted_token_count`` are inserted, which is as much as is
    cached of it. ``idle`` is the time since it last inserted something, or began, in
    seconds: what is hung grows old, and is reported until its lease expires.
    """

    token_count: int
    inserted_token_count: int
    idle: float

    @classmethod
    def of(
        cls, answer: prefix_cache_pb2.PrefixMatch | prefix_cache_pb2.PeekPrefixResponse
    ) -> Self | None:
        """Returns what an answer tells; None where it tells of nothing, as older servers do."""
        if not answer.HasField("in_flight"):
            return None
        found = answer.in_flight
        return cls(found.token_count, found.inserted_token_count, found.idle_ms * MILLISECOND)
