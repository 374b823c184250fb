"""A real store beside the engines, and what it counts."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kvstore.v1 import store_pb2
from kvstore_client.admin import connect_admin
from kvstore_client.testing import RunningStore, running_store, wait_until


@dataclass(frozen=True)
class Store:
    """A running store. ``process`` is killed and started by cases."""

    process: RunningStore

    @property
    def runtime_dir(self) -> Path:
        """The folder that engines name."""
        return self.process.runtime_dir

    def stats(self) -> store_pb2.GetStatsResponse:
        """Returns one consistent snapshot; raises ``StoreError``."""
        with connect_admin(self.runtime_dir) as admin:
            return admin.stats()

    def held(self) -> str:
        """Says what is held once all that comes back came, leases of living engines aside."""
        wait_until(lambda: not _held(self.stats()), 20.0)
        return _held(self.stats())


@contextmanager
def store(folder: Path, *arguments: str, start: bool = True) -> Iterator[Store]:
    """Runs a store in a folder, which may be there already."""
    with running_store(*arguments, runtime_dir=folder, start=start) as process:
        yield Store(process)


def _held(stats: store_pb2.GetStatsResponse) -> str:
    reserved = sum(arena.reserved_slot_count for arena in stats.arenas)
    found = {
        "pins": stats.pin_count,
        "reservations": stats.reservation_count,
        "reserved slots": reserved,
        "slots in quarantine": stats.quarantined_slot_count,
        "detached pages": stats.detached_page_count,
    }
    return ", ".join(f"{count} {name}" for name, count in found.items() if count)
