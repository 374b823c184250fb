"""Steps of tests of prefills under way: acquire and yield, and see what is in flight."""

from math import inf

from core.core_builders import NAMESPACE_ID, OWNER, CoreWorld, Worker, paged
from kvstore.core.values.requests import Grant, Match, MatchOptions, Sequence


def acquire(
    worker: Worker,
    letters: str,
    ids: tuple[int, int],
    *,
    idle: float | None = inf,
    sequence: Sequence | None = None,
) -> tuple[Match, Grant | None]:
    """Match ``letters`` and reserve the rest, unless somebody computes more of them."""
    return worker.cache.acquire(
        worker.caller,
        NAMESPACE_ID,
        sequence or worker.sequence(letters),
        MatchOptions(ids[0]),
        reservation_id=ids[1],
        total_page_count=len(letters),
        now=worker.world.now,
        yield_idle=idle,
    )


def in_flight(world: CoreWorld, letters: str) -> tuple[int, int] | None:
    """Peek, and return through which page ``letters`` are being computed, and are inserted."""
    tokens = paged(letters) + paged("z")
    found = world.cache.peek(OWNER, NAMESPACE_ID, tokens, world.now).in_flight
    return found and (found.token_count // 2, found.inserted_token_count // 2)
