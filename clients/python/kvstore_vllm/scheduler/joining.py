"""Whether an engine's ranks have joined its lease, and for how long they are waited for."""

import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

# For how long the store is waited for after the start, and ranks that were told of a lease, in
# seconds. A bound with room to spare: in `make test-vllm` on two cores a server's first requests,
# with all of that, take 0.4 s together.
LONGEST_JOIN: Final = 2.0


class Joining:
    """What is known of a store that is attached to, and of the ranks that are to join.

    ``rank_count`` is of those in other processes; it is 0 where all share the client's. A
    lease is None while there is none. The scheduler's thread uses it.
    """

    def __init__(self, rank_count: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._rank_count = rank_count
        self._clock = clock
        self._began_at = clock()
        self._joined: Counter[bytes] = Counter()
        self._told_lease: bytes | None = None
        self._told_at = 0.0

    @property
    def tells_ranks(self) -> bool:
        """Whether ranks have to be told of leases."""
        return self._rank_count > 0

    def told(self, lease: bytes | None) -> None:
        """Notes that the ranks are told of a lease with the next step."""
        if lease != self._told_lease:
            self._told_lease, self._told_at = lease, self._clock()

    def came(self, joined: Mapping[bytes, int]) -> None:
        """Notes how many ranks more have joined which lease."""
        self._joined.update(joined)

    def complete(self, lease: bytes | None) -> bool:
        """Returns whether every rank has joined a lease, of a store that answers."""
        if not self._rank_count:
            return True
        return lease is not None and self._joined[lease] >= self._rank_count

    def waits(self, *, answers: bool, tried: bool, lease: bytes | None) -> bool:
        """Returns whether the store, or ranks, are still on their way.

        ``answers``: whether the store answers; ``tried``: whether it was tried to reach it. One
        that is not there, or stopped answering, is not waited for.
        """
        if not answers:
            return not tried and self._clock() - self._began_at < LONGEST_JOIN
        if lease is None or self.complete(lease):
            return False
        return lease != self._told_lease or self._clock() - self._told_at < LONGEST_JOIN
