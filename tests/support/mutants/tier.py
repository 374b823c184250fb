"""The faults about tiers that the cache machine has to find in the core."""

from mutants.core import Mutant

TIER_MUTANTS = [
    Mutant(
        "move-does-not-hold-its-sources",
        "tiers/moves.py",
        "        self.stand_at(at)\n",
        "        self.stand_at(ancestor(at, 1))\n",
    ),
    Mutant(
        "other-tier-not-held",
        "leases/holds.py",
        "        if end > top:\n",
        "        if end > top + 1000:\n",
    ),
    Mutant(
        "demoted-without-a-copy",
        "tiers/moves.py",
        "        if leaf.node.lower_count >= leaf.copy_count:\n",
        "        if True:\n",
    ),
    Mutant(
        "source-page-left-below",
        "tiers/moves.py",
        "self._begin(found.last, FIRST, moves, found.last.depth)",
        "self._begin(found.at, FIRST, moves, found.at.depth)",
    ),
    Mutant(
        "published-though-it-was-not-copied",
        "tiers/moves.py",
        "        if copied and target",
        "        if target",
    ),
]
