"""Worlds of the core with two tiers."""

from core.core_builders import CoreWorld
from kvstore.core.pool.tier_policy import TierPolicy
from kvstore.core.values.requests import Match

# Everything goes down as soon as nobody holds it.
ALL = {"low": 1.0, "high": 1.0}


def make(
    slots: int = 8, lower_slots: int = 16, *, divides_by_token: bool = False, **policy: object
) -> CoreWorld:
    """Returns a world of two tiers."""
    chosen = TierPolicy(**{**ALL, **policy})  # type: ignore[arg-type]  # any of them
    return CoreWorld(
        slots=slots,
        lower_slots=lower_slots,
        divides_by_token=divides_by_token,
        tier_policy=chosen,
    )


def tiers(match: Match) -> list[tuple[int, int]]:
    """Returns the runs of a match as (tier, pages)."""
    return [(run.tier, len(run.indexes)) for run in match.runs]


def sunk(*sequences: str, **policy: object) -> CoreWorld:
    """Returns a world whose pages are in tier 2 alone."""
    world = make(**policy)  # type: ignore[arg-type]  # any of them
    world.worker.publish(*sequences)
    move(world)
    assert world.arena.free_count == world.arena.slot_count
    return world


def move(world: CoreWorld, most: int = 100, rounds: int = 4) -> int:
    """Runs the mover a few times. Returns how many pages it copied."""
    copied = 0
    for _ in range(rounds):
        copied += world.cache.finish_moves(world.cache.plan_moves(most))
        world.laws.check()
    return copied
