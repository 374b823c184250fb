"""What a call says of loads: how long it can wait, and how fast its engine computes."""

from math import inf
from typing import NamedTuple


class LoadTerms(NamedTuple):
    """``seconds`` are left until the call's deadline.

    ``prefill_tokens_per_second`` is what the engine computes; 0: not stated.
    """

    seconds: float = inf
    prefill_tokens_per_second: int = 0


NO_TERMS = LoadTerms()
