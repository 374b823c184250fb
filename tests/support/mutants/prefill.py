"""The faults about prefills under way that the cache machine has to find in the core."""

from mutants.core import Mutant

PREFILL_MUTANTS = [
    Mutant(
        "another-speed-is-another-match",
        "verbs/match.py",
        "            options.accept_next_token,\n",
        "            options.accept_next_token,\n            options.prefill_tokens_per_second,\n",
    ),
    Mutant(
        "late-lease-is-waited-for",
        "leases/lifecycle.py",
        "            each.drop_prefill()\n",
        "",
    ),
    Mutant(
        "two-compute-one-prefix",
        "verbs/match.py",
        "        if yield_idle is not None and in_flight is not None:\n",
        "        if False:\n",
    ),
    Mutant(
        "more-announced-than-there-are-slots",
        "verbs/insert.py",
        "        end = start + len(reservation.reserved)\n",
        "        end = start + len(reservation.reserved) + 1\n",
    ),
    Mutant(
        "shorter-agreement-wins",
        "pool/in_flight.py",
        "        for side in (before, islice(",
        "        for side in (before,) if place else (islice(",
    ),
    Mutant(
        "last-page-is-waited-for",
        "verbs/lookup.py",
        "    end = matchable_pages(length, page_tokens)\n    if depth",
        "    end = length // page_tokens\n    if depth",
    ),
]
