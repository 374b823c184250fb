"""The faults about tiers that the cache machine has to find in the core."""

from mutants.mutant import Mutant

TIER_MUTANTS = [
    Mutant(
        "move-does-not-hold-its-sources",
        "kvstore.core.tiers.moves",
        "Move.__init__",
        "self.stand_at(at)",
        "self.stand_at(ancestor(at, 1))",
    ),
    Mutant(
        "other-tier-not-held",
        "kvstore.core.leases.holds",
        "Hold.stand_at",
        "end > top",
        "end > top + 1000",
    ),
    Mutant(
        "demoted-without-a-copy",
        "kvstore.core.tiers.moves",
        "_drop_copied",
        "leaf.node.lower_count >= leaf.copy_count",
        "True",
    ),
    Mutant(
        "source-page-left-below",
        "kvstore.core.tiers.moves",
        "Moves.plan_promotion",
        "self._begin(found.last, FIRST, moves, most)",
        "self._begin(found.at, FIRST, moves, most)",
    ),
    Mutant(
        "published-though-it-was-not-copied",
        "kvstore.core.tiers.moves",
        "finish",
        "_good_count(part, move.tier, arena) if copied else 0",
        "_good_count(part, move.tier, arena)",
    ),
]
