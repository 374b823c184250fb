"""What a caller knows of a sequence's future, and what the cache found out itself."""

from enum import IntEnum
from math import inf
from typing import NamedTuple


class ExpectedReuse(IntEnum):
    """Whether a sequence is expected to be asked for again; numbers as on the wire."""

    UNKNOWN = 0
    CONTINUES = 1
    ONE_SHOT = 2


class Hint(NamedTuple):
    """A caller's hint of some pages. It orders evictions and nothing else.

    The expectation holds until ``until``, in seconds of the cache's clock. Pages of
    higher ``priority`` go later; zero is ordinary. ``returned`` is the cache's own
    knowledge: these pages were evicted, and soon published again.
    """

    expected_reuse: ExpectedReuse = ExpectedReuse.UNKNOWN
    until: float = inf
    priority: int = 0
    returned: bool = False


NO_HINT = Hint()


class ReuseHint(NamedTuple):
    """A hint as a caller gives it: the expectation holds for ``horizon`` seconds from receipt."""

    expected_reuse: ExpectedReuse = ExpectedReuse.UNKNOWN
    horizon: float = inf
    priority: int = 0

    def at(self, now: float) -> Hint:
        """Return the hint as it is kept, received at ``now``."""
        return Hint(self.expected_reuse, now + self.horizon, self.priority)
