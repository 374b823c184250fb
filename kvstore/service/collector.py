"""When Python looks for cycles: often among what is new, never through the whole index.

A full collection looks at each tracked thing: 0.3 s of standstill with a million
cached pages on an idle core, and it comes by itself, again and again as the index
grows. So it is asked for instead, while little is new, and what outlives it is looked
at no more (``gc.freeze``): what is given back is freed all the same, by its count of
references, unless it is part of a cycle by then. benchmarks/index.py measures both.
"""

import gc

from kvstore.service.clock import Clock

# Allocations between two looks at the newest, and those looks between two at what
# outlived one: Python's own numbers. The third would be a full collection.
THRESHOLDS = (700, 10, 1 << 30)
# So many looks at what outlived one, of some 7,000 things each, make a collection due.
ROUNDS = 4
# Seconds after which one is due anyway.
AT_LATEST = 60.0


class Collector:
    """Collects what is new, in small portions. ``step`` is to be called every second or so."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._due_at = clock()

    def begin(self) -> None:
        """Let no full collection come by itself any more. For the whole process."""
        gc.set_threshold(*THRESHOLDS)
        self.step()

    def step(self) -> None:
        """Collect what came since the last time and leave the rest alone, if that is due."""
        now = self._clock()
        if now >= self._due_at or gc.get_count()[2] >= ROUNDS:
            self._due_at = now + AT_LATEST
            gc.collect()
            gc.freeze()
