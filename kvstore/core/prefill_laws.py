"""The laws of prefills under way: who is told what of whom."""

from itertools import pairwise

from kvstore.core.directory import Directory
from kvstore.core.holds import Reservation
from kvstore.core.law import law
from kvstore.core.lease import LeaseState
from kvstore.core.namespace import Namespace


def check_prefills(cache: Directory) -> None:
    """Raise LawBroken unless every law of prefills holds."""
    announced = {
        each.prefill: each
        for lease in cache.table.leases.values()
        if lease.state is LeaseState.ACTIVE
        for each in lease.reservations.values()
        if each.prefill is not None
    }
    sizes = dict.fromkeys(cache.table.holdings, 0)
    for namespace in cache.namespaces.values():
        _check_order(namespace)
        for prefill in namespace.prefills:
            reservation = announced.pop(prefill, None)
            open_there = reservation is not None and reservation.namespace is namespace
            law(open_there, "a prefill is of an open reservation of a lease that lives")
            assert reservation is not None  # the law's
            _check_extent(reservation)
            sizes[namespace.tenant] += len(prefill.tokens)
    law(not announced, "what a reservation announced is found in its namespace")
    for tenant, holdings in cache.table.holdings.items():
        counted = holdings.announced_bytes == sizes[tenant]
        law(counted, "a tenant's announced tokens are counted", tenant)
        within = sizes[tenant] <= cache.limits.max_announced_bytes
        law(within, "a tenant's announced tokens are bounded", tenant)


def _check_order(namespace: Namespace) -> None:
    width = namespace.index.width
    for (page, tokens), there in namespace.prefills.by_page.items():
        start = page * width
        stands = bool(there) and all(
            each.at == page and each.tokens[start : start + width] == tokens for each in there
        )
        law(stands, "a prefill stands at the page that it inserts next", page)
        ordered = all((a.tokens, a.number) < (b.tokens, b.number) for a, b in pairwise(there))
        law(ordered, "the prefills of a page stand in the order of their tokens", page)


def _check_extent(reservation: Reservation) -> None:
    prefill, width = reservation.prefill, reservation.namespace.index.width
    assert prefill is not None  # who asks found it
    law(prefill.at == reservation.whole_end, "a prefill is as far as its reservation", prefill.at)
    last = min(reservation.start_page + len(reservation.reserved), len(prefill.tokens) // width)
    law(prefill.at < prefill.end <= last, "a prefill is of pages that have slots and tokens")
    known = reservation.tokens()
    as_said = prefill.tokens.startswith(known) and len(known) in (0, prefill.at * width)
    law(as_said, "what was inserted is what was announced", prefill.at)
