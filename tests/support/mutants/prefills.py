"""The faults about prefills under way that the cache machine has to find in the core."""

from mutants.mutant import Mutant

PREFILL_MUTANTS = [
    Mutant(
        "another-speed-is-another-match",
        "kvstore.core.verbs.match",
        "fingerprint_of",
        "options.accept_next_token",
        "options.accept_next_token,\noptions.prefill_tokens_per_second",
    ),
    Mutant(
        "late-lease-is-waited-for",
        "kvstore.core.verbs.lease_lifecycle",
        "Lifecycle._expire_lease",
        "each.drop_prefill()",
        "pass",
    ),
    Mutant(
        "two-compute-one-prefix",
        "kvstore.core.verbs.match",
        "Matching.match_in",
        "yield_idle is not None and in_flight is not None",
        "False",
    ),
    Mutant(
        "more-announced-than-there-are-slots",
        "kvstore.core.verbs.insert",
        "announce",
        "start + len(reservation.reserved)",
        "start + len(reservation.reserved) + 1",
    ),
    Mutant(
        "shorter-agreement-wins",
        "kvstore.core.pool.prefills",
        "Prefills.find",
        "(before, islice(there, place, place + NEIGHBOURS))",
        "(before,)",
    ),
    Mutant(
        "last-page-is-waited-for",
        "kvstore.core.verbs.lookup",
        "in_flight_beyond",
        "matchable_pages(length, page_tokens)",
        "length // page_tokens",
    ),
]
