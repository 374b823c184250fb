"""The holds that are left when all faults are over and all workers have ended."""

from pathlib import Path

from chaos.tally import Tally
from kvstore.v1 import store_pb2
from kvstore_client import Admin, connect_admin
from kvstore_client.testing import wait_until

SETTLE_SECONDS = 15.0


class Left:
    """The holds at one moment that no living process owns."""

    def __init__(self, admin: Admin) -> None:
        stats = admin.stats()
        self.stats: store_pb2.GetStatsResponse = stats
        self.slots = sum(
            a.reserved_slot_count + a.detached_slot_count + a.moving_slot_count
            for a in stats.arenas
        )
        self.quarantined = sum(a.quarantined_slot_count for a in stats.arenas)
        # Also those of leases that are gone: the index knows who holds it.
        holds = [
            node.pin_count
            for namespace in stats.namespaces
            for node in admin.prefixes(namespace.namespace_id)
        ]
        self.pins = max(stats.pin_count + stats.reservation_count, sum(holds))

    @property
    def nothing(self) -> bool:
        """True if nothing is held."""
        return not (self.slots or self.quarantined or self.pins or self.stats.leases)


def check_left(runtime_dir: Path, tally: Tally) -> None:
    """Waits until nothing is held, and count what is held even then."""
    with connect_admin(runtime_dir) as admin:
        for pin in admin.named_pins():
            admin.unpin_prefix(pin.namespace_id, pin.name)
        seen: list[Left] = []

        def is_settled() -> bool:
            seen.append(Left(admin))
            return seen[-1].nothing

        wait_until(is_settled, SETTLE_SECONDS)
        # Not a later one: the store itself holds pages for a moment while it copies them.
        left = seen[-1]
    names = [each.display_name for each in left.stats.leases]
    what = f"after the end, with leases of {names}"
    tally.wrong("leaked_slots", what, left.slots)
    tally.wrong("leaked_pins", what, left.pins)
    tally.wrong("quarantine_left", what, left.quarantined)
    tally.wrong("hung_workers", what, len(names))
    tally.add("cached_at_the_end", sum(a.cached_slot_count for a in left.stats.arenas))
