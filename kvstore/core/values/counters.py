"""Counters of requests and results."""

from dataclasses import astuple, dataclass, fields
from typing import NamedTuple

MICROSECONDS = 1_000_000


class Lookup(NamedTuple):
    """A match in tokens: ``asked``, of which ``matchable`` could be found.

    ``matched`` of them are used in place, and ``copied`` come from a source page. If
    ``has_next_token`` is set, the token after all of them is known too. A speed of 0 tokens a
    second means that the caller stated none.
    """

    asked: int
    matched: int
    copied: int
    matchable: int
    has_next_token: bool = False
    prefill_tokens_per_second: int = 0


@dataclass
class Counters:
    """Counts of what callers asked and what the cache gave. Each only grows."""

    lookup_count: int = 0
    full_hit_count: int = 0
    partial_hit_count: int = 0
    miss_count: int = 0
    asked_token_count: int = 0
    matched_token_count: int = 0
    copied_token_count: int = 0
    next_token_count: int = 0
    inserted_page_count: int = 0
    duplicate_page_count: int = 0
    superseded_page_count: int = 0
    evicted_page_count: int = 0
    removed_page_count: int = 0
    exhausted_count: int = 0
    verified_page_count: int = 0
    corrupt_page_count: int = 0
    returned_page_count: int = 0
    demoted_page_count: int = 0
    promoted_page_count: int = 0
    loaded_page_count: int = 0
    yielded_count: int = 0
    timed_token_count: int = 0
    saved_prefill_us: int = 0

    def add(self, other: "Counters") -> None:
        """Adds another's counts to these."""
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))

    def less(self, other: "Counters") -> "Counters":
        """Returns these counts without another's."""
        return Counters(
            *(mine - its for mine, its in zip(astuple(self), astuple(other), strict=True))
        )

    def copy(self) -> "Counters":
        """Returns a copy. Fast, since a snapshot has one for each namespace and lease."""
        copied = Counters.__new__(Counters)
        vars(copied).update(vars(self))
        return copied

    def is_zero(self) -> bool:
        """Returns True if nothing was counted."""
        return not any(astuple(self))


def count_lookup(lookup: Lookup, *sinks: Counters) -> None:
    """Adds a match that was answered to some counters."""
    found = lookup.matched + lookup.copied
    speed = lookup.prefill_tokens_per_second
    for counters in sinks:
        counters.lookup_count += 1
        counters.asked_token_count += lookup.asked
        counters.matched_token_count += lookup.matched
        counters.copied_token_count += lookup.copied
        counters.next_token_count += lookup.has_next_token
        if speed:
            counters.timed_token_count += found
            counters.saved_prefill_us += found * MICROSECONDS // speed
        if found == 0:
            counters.miss_count += 1
        elif found == lookup.matchable:
            counters.full_hit_count += 1
        else:
            counters.partial_hit_count += 1
