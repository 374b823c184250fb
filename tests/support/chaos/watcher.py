"""Looks at the store's statistics all the time: what is in quarantine, and what is left over."""

import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread
from typing import NamedTuple

from chaos.tally import Tally
from kvstore.v1 import lease_pb2, store_pb2
from kvstore_client import Admin, connect_admin
from kvstore_client.errors import StoreError

INTERVAL = 0.1
TIMEOUT = 1.0
# A dead worker's lease is gone at once. This is how much longer a busy machine may take:
# seconds, and looks that the store answered.
LATE_SECONDS, LATE_LOOKS = 5.0, 20
EXPIRED = lease_pb2.LeaseInfo.STATE_EXPIRED
# States whose slots a lease owns.
OWNED = ("reserved", "quarantined")
# Counts of pages copied between tiers, by what they are called in the result.
MOVED: dict[str, Callable[[store_pb2.GetStatsResponse], int]] = {
    "demotions": lambda stats: stats.counters.demoted_page_count,
    "promotions": lambda stats: stats.counters.promoted_page_count,
    "kept": lambda stats: stats.tier_3.written_page_count,
    "loads": lambda stats: stats.counters.loaded_page_count,
    "remote_loads": lambda stats: stats.remote.read_page_count,
    "remote_kept": lambda stats: stats.remote.written_page_count,
    "remote_rejected": lambda stats: sum(each.count for each in stats.remote.rejected_pages),
    "remote_away": lambda stats: stats.remote.away_count,
    "remote_looks_hit": lambda stats: stats.remote.hit_look_count + stats.remote.partial_look_count,
    "remote_looks_missed": lambda stats: stats.remote.missed_look_count,
    "remote_looks_skipped": lambda stats: stats.remote.skipped_look_count,
    "remote_looks_failed": lambda stats: stats.remote.failed_look_count,
    "remote_declined": lambda stats: stats.remote.declined_load_count,
    "remote_late": lambda stats: stats.remote.late_load_count,
    "remote_refused": lambda stats: sum(each.count for each in stats.remote.refused_pages),
}
REMOTE_OPEN = store_pb2.RemoteStats.STATE_OPEN
STATES = ("free", "reserved", "cached", "detached", "moving", "quarantined")


class Look(NamedTuple):
    """One snapshot. Looks are numbered; ``begun`` is when it was asked for."""

    number: int
    begun: float
    stats: store_pb2.GetStatsResponse

    def leases(self, name: str) -> list[lease_pb2.LeaseInfo]:
        """Returns the leases of a worker."""
        return [each for each in self.stats.leases if each.display_name == name]


class Departed:
    """A worker that died, for as long as its lease is there."""

    def __init__(self) -> None:
        self.died = time.monotonic()
        self.epoch = 0
        self.looks = 0


class Watcher:
    """A thread that looks until it is closed. Any thread may read ``look``."""

    def __init__(self, runtime_dir: Path, tally: Tally) -> None:
        self.look = Look(0, 0.0, store_pb2.GetStatsResponse())
        self._runtime_dir = runtime_dir
        self._tally = tally
        self._departed: dict[str, Departed] = {}
        self._evicted: dict[int, int] = {}
        self._moved: dict[tuple[int, str], int] = {}
        self._corrupt: dict[int, int] = {}
        self._closing = Event()
        self._thread = Thread(target=self._run, name="chaos-watcher", daemon=True)
        self._thread.start()

    def departed(self, name: str) -> None:
        """Watches that nothing of a dead worker is left."""
        self._departed[name] = Departed()

    @property
    def waiting(self) -> bool:
        """True if the lease of a dead worker may still exist."""
        return bool(self._departed)

    def close(self) -> None:
        """Stop. Can be repeated."""
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._closing.is_set():
                with (
                    suppress(StoreError),
                    connect_admin(self._runtime_dir, timeout=TIMEOUT) as admin,
                ):
                    self._watch(admin)
                self._closing.wait(INTERVAL)
        except BaseException as error:
            self._tally.wrong("crashed_workers", f"the watcher: {error!r}")
            raise

    def _watch(self, admin: Admin) -> None:
        """Looks, until there is no answer."""
        while not self._closing.is_set():
            begun = time.monotonic()
            stats = admin.stats()
            look = Look(self.look.number + 1, begun, stats)
            self.look = look
            evicted = stats.counters.evicted_page_count
            # A server's counters are gone with it.
            self._tally.add("epochs", stats.store_epoch not in self._evicted)
            self._tally.add("evictions", _grown(self._evicted.get(stats.store_epoch, 0), evicted))
            self._evicted[stats.store_epoch] = evicted
            for name, counted in MOVED.items():
                count = counted(stats)
                known = self._moved.get((stats.store_epoch, name), 0)
                self._tally.add(name, _grown(known, count))
                self._moved[stats.store_epoch, name] = count
            corrupt = stats.counters.corrupt_page_count
            known = self._corrupt.get(stats.store_epoch, 0)
            self._corrupt[stats.store_epoch] = corrupt
            if corrupt > known:
                self._tally.wrong("corrupt_pages", f"the store found {corrupt} pages")
            if stats.HasField("remote"):
                self._tally.add("remote_looked_at")
                self._tally.add("remote_open", stats.remote.state == REMOTE_OPEN)
            self._check_sums(stats)
            for name, gone in list(self._departed.items()):
                self._check_departed(look, name, gone)
            self._closing.wait(INTERVAL)

    def _check_sums(self, stats: store_pb2.GetStatsResponse) -> None:
        """Every slot is in one state, and what leases have of it is all that there is of it."""
        totals = Counter[str]()
        for arena in stats.arenas:
            states = {state: getattr(arena, f"{state}_slot_count") for state in STATES}
            totals.update(states)
            if sum(states.values()) != arena.slot_count:
                self._tally.wrong("broken_sums", f"{states} of {arena.slot_count}")
        for state in OWNED:
            owned = sum(getattr(lease, f"{state}_slot_count") for lease in stats.leases)
            if owned != totals[state]:
                what = f"leases have {owned} {state} slots, arenas {totals[state]}"
                self._tally.wrong("broken_sums", what)

    def _check_departed(self, look: Look, name: str, gone: Departed) -> None:
        if look.begun < gone.died:
            return
        leases = look.leases(name)
        if not leases:
            del self._departed[name]
            return
        if gone.epoch != look.stats.store_epoch:
            gone.epoch, gone.looks = look.stats.store_epoch, 0
        gone.looks += 1
        if gone.looks >= LATE_LOOKS and look.begun - gone.died >= LATE_SECONDS:
            del self._departed[name]
            slots = sum(each.reserved_slot_count + each.quarantined_slot_count for each in leases)
            what = f"{name} died {look.begun - gone.died:.1f} s ago and has a lease"
            self._tally.wrong("leaked_slots", what, slots)
            self._tally.wrong("leaked_pins", what, sum(each.pin_count for each in leases))
            self._tally.add("late_leases")


def _grown(known: int, now: int) -> int:
    """Returns by how much a counter grew, which began anew if it is smaller than before."""
    return now - known if now >= known else now
