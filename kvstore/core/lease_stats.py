"""What a lease holds at one moment, as a whole and hold by hold: everything here is a copy."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from kvstore.core.holds import Pin, Reservation, SourcePin
from kvstore.core.lease import Lease, LeaseState
from kvstore.core.values.counters import Counters


class HoldKind(Enum):
    """What a hold is."""

    PIN = 1
    SOURCE = 2
    RESERVATION = 3


KINDS = {Pin: HoldKind.PIN, SourcePin: HoldKind.SOURCE, Reservation: HoldKind.RESERVATION}


@dataclass(frozen=True)
class HoldStats:
    """One hold; numbers count its lease's by taking. The age is in seconds.

    ``page_count`` pages of its sequence are held, from the beginning, or one
    source page; ``token_count`` are their tokens, and ``detached_page_count`` of
    the pages are out of the index. ``slot_count`` slots are reserved and not
    published, or in quarantine. Through ``announced_token_count`` tokens others know that
    it is to compute its sequence; zero: they do not.
    """

    number: int
    kind: HoldKind
    hold_id: int
    namespace_id: bytes
    page_count: int
    token_count: int
    detached_page_count: int
    slot_count: int
    announced_token_count: int
    age: float


@dataclass(frozen=True)
class ProcessStats:
    """One attached process."""

    pid: int
    uid: int
    connected: bool
    mapped_extent_count: int


@dataclass(frozen=True)
class LeaseStats:
    """One lease and what it holds. Ages are in seconds; numbers count by granting.

    ``in_flight_count`` of its reservations are announced and not computed to their end.
    """

    number: int
    lease_id: bytes
    display_name: str
    tenant: str
    expired: bool
    age: float
    since_renewal: float
    processes: tuple[ProcessStats, ...]
    pin_count: int
    reservation_count: int
    in_flight_count: int
    reserved_slot_count: int
    quarantined_slot_count: int
    pinned_page_count: int
    detached_page_count: int
    oldest_hold_age: float | None
    oldest_quarantine_age: float | None
    counters: Counters


def lease_stats(lease: Lease, now: float) -> LeaseStats:
    """Return what a lease holds."""
    expired = lease.state is LeaseState.EXPIRED
    slots = lease.unpublished_count()
    holds = [*lease.pins.values(), *lease.reservations.values()]
    quarantined = slots if expired else 0
    since = lease.expired_at if quarantined else None
    return LeaseStats(
        number=lease.number,
        lease_id=lease.lease_id,
        display_name=lease.display_name,
        tenant=lease.tenant,
        expired=expired,
        age=now - lease.granted_at,
        since_renewal=now - lease.renewed_at,
        processes=tuple(
            ProcessStats(each.pid, each.uid, each.connected, len(each.mapped))
            for each in lease.processes.values()
        ),
        pin_count=len(lease.pins),
        reservation_count=len(lease.reservations),
        in_flight_count=sum(each.prefill is not None for each in lease.reservations.values()),
        reserved_slot_count=slots - quarantined,
        quarantined_slot_count=quarantined,
        pinned_page_count=sum(each.page_count for each in lease.pins.values()),
        # Of a namespace without detached pages no hold has any: there it is not looked at them.
        detached_page_count=sum(
            each.detached_page_count for each in holds if each.namespace.detached_page_count
        ),
        oldest_hold_age=now - min(each.taken_at for each in holds) if holds else None,
        oldest_quarantine_age=None if since is None else now - since,
        counters=lease.counters.copy(),
    )


def hold_stats(lease: Lease, now: float) -> list[HoldStats]:
    """Return all that a lease holds, by number."""
    holds = [*lease.pins.values(), *lease.reservations.values()]
    return [_hold(each, now) for each in sorted(holds, key=lambda each: each.number)]


def oldest(ages: Iterable[float | None]) -> float | None:
    """Return the largest of the ages that there are."""
    return max((each for each in ages if each is not None), default=None)


def _hold(hold: Pin | SourcePin | Reservation, now: float) -> HoldStats:
    reserved = announced = 0
    if isinstance(hold, Reservation):
        reserved = hold.published.count(0)
        if hold.prefill is not None:
            announced = hold.prefill.end * hold.namespace.layout.page_tokens
    return HoldStats(
        number=hold.number,
        kind=KINDS[type(hold)],
        hold_id=hold.hold_id,
        namespace_id=hold.namespace.namespace_id,
        page_count=hold.page_count,
        token_count=hold.token_count,
        detached_page_count=hold.detached_page_count,
        slot_count=reserved,
        announced_token_count=announced,
        age=now - hold.taken_at,
    )
