"""Which of several engine processes a request goes to: the one place that decides it."""

from collections.abc import Iterable

from inference_worker.engine.request import Request
from inference_worker.fleet.link import EngineLink


def choose_engine(links: Iterable[EngineLink], request: Request) -> EngineLink | None:
    """Chooses the one with the fewest tokens to compute, the first of several; None of none.

    What each has in its own memory does not count: what one has computed of a prompt, all find at
    the store.
    """
    del request
    return min(
        (each for each in links if each.open),
        key=lambda each: each.outstanding_tokens,
        default=None,
    )
