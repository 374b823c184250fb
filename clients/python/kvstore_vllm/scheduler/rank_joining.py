"""The ranks that joined an engine's lease, and the wait for the others."""

import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

# Seconds to wait for the store after the start, and for ranks that got a lease. In `make
# test-vllm` on two cores a server's first requests, with both waits, take 0.4 s together.
LONGEST_JOIN: Final = 2.0


class Joining:
    """The state of the attachment to a store, and of the ranks that have to join its lease.

    ``rank_count`` is the number of ranks in other processes, 0 if all share the client's
    process. A lease is None while none exists. The scheduler's thread uses it.
    """

    def __init__(self, rank_count: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._rank_count = rank_count
        self._clock = clock
        self._began_at = clock()
        self._joined: Counter[bytes] = Counter()
        self._shared_lease: bytes | None = None
        self._shared_at = 0.0

    @property
    def tells_ranks(self) -> bool:
        """True if ranks in other processes need the lease."""
        return self._rank_count > 0

    def shared(self, lease: bytes | None) -> None:
        """Notes that the ranks get a lease with the next step."""
        if lease != self._shared_lease:
            self._shared_lease, self._shared_at = lease, self._clock()

    def came(self, joined: Mapping[bytes, int]) -> None:
        """Adds the number of ranks that newly joined each lease."""
        self._joined.update(joined)

    def complete(self, lease: bytes | None) -> bool:
        """Returns whether every rank has joined ``lease``, or none has to."""
        if not self._rank_count:
            return True
        return lease is not None and self._joined[lease] >= self._rank_count

    def waits(self, *, answers: bool, tried: bool, lease: bytes | None) -> bool:
        """Returns whether to wait for the store or for ranks.

        ``answers`` is True if the store answers, and ``tried`` is True once an attempt to attach
        has ended. A store that is absent or stopped answering is not waited for.
        """
        if not answers:
            return not tried and self._clock() - self._began_at < LONGEST_JOIN
        if lease is None or self.complete(lease):
            return False
        return lease != self._shared_lease or self._clock() - self._shared_at < LONGEST_JOIN
