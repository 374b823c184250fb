"""The server's settings of leases, and of how long a stop waits for them."""

from typing import Annotated, Self

from pydantic import model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from kvstore.config_about import AT_SIGHUP, Shown
from kvstore.config_types import Grace, Interval, Seconds


class LeaseSettings(BaseSettings):
    """How long leases live without a renewal, and who looks."""

    model_config = SettingsConfigDict(use_attribute_docstrings=True)

    default_ttl: Annotated[
        Seconds, Shown(metrics="kvstore_leases", stats="expired_lease_count", log="lease_expired")
    ] = 10.0
    """Time to live of a lease whose client asks for none.

    Too short when `lease_expired` is logged for workers that live; too long when
    slots stay reserved long after a worker hung. Start with: 10.
    """

    min_ttl: Annotated[Seconds, Shown(metrics="kvstore_requests_total", stats="request_count")] = (
        0.2
    )
    """Shortest time to live granted. Each lease is renewed three times within its own.

    Too short when renewals are most of the calls in the log. Start with: 0.2.
    """

    max_ttl: Annotated[
        Seconds,
        Shown(
            metrics="kvstore_oldest_quarantine_seconds kvstore_held_slots",
            stats="reserved_slot_count quarantined_slot_count oldest_quarantine_age",
        ),
    ] = 300.0
    """Longest time to live granted.

    Too long when `reserved_slot_count` stays high after a worker hung. Start with: 300.
    """

    drain_grace: Annotated[Grace, AT_SIGHUP, Shown(log="drain_finished")] = 10.0
    """How long a stop waits for leases to end before it stops anyway.

    Too short when `drain_finished` is logged with `leases_left` above zero, whose
    workers then go on without a store. Start with: what a request takes, and not
    more than the supervisor waits before it kills.
    """

    reaper_interval: Annotated[
        Interval,
        AT_SIGHUP,
        Shown(
            metrics="kvstore_thread_silence_seconds kvstore_leases",
            stats="expired_lease_count",
            log="lease_expired",
        ),
    ] = 0.1
    """How often leases are looked through for those past their time to live.

    Too long when `lease_expired` comes late; too short when an idle server takes
    processor time. Start with: half of `min_ttl`.
    """

    @model_validator(mode="after")
    def _order_ttls(self) -> Self:
        if not self.min_ttl <= self.default_ttl <= self.max_ttl:
            raise ValueError("min_ttl, default_ttl and max_ttl have to be in this order")
        return self
