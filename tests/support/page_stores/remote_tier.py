"""Hypothesis state machines over remote stores, whose engine in memory has every fault."""

import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import rule

from kvstore.remote.errors import EngineUnreachable
from kvstore.remote.remote_store import RemoteStore
from kvstore.remote.secret.revisions import Revision
from kvstore.storage.page_store import SharedPageStore, StoreState
from page_stores.host_machine import Host, HostMachine
from page_stores.numbered_pages import LIMIT
from page_stores.remote_rig import SETTINGS, RemoteStoreRig, wait_until
from page_stores.shared_page_store import SharedMedium
from page_stores.tier_machine import COUNTS, PATHS, QUEUE_BYTES, SOON, Path_, TierMachine
from stores.store_world import RunningClock

# Two pages of a namespace fit into its half of the queue.
MACHINE_SETTINGS = replace(SETTINGS, queue_bytes=2 * QUEUE_BYTES, timeout_seconds=1.0)


def make_quick(patch: pytest.MonkeyPatch) -> None:
    """Shortens what stores wait for in real time."""
    patch.setattr("kvstore.remote.liveness.look_worth.MISSING_SECONDS", 0.0)
    patch.setattr("kvstore.remote.liveness.look_worth.LEAST_HITS", 0.0)
    patch.setattr("kvstore.remote.liveness.probe.FIRST_SECONDS", 0.002)
    patch.setattr("kvstore.remote.history.due_queue.FIRST_RETRY", 0.01)


class RemoteTier(TierMachine):
    """Over a remote store. The engine loses, corrupts, hangs, fails, and restores old states."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="remote-tier-"))
        self.values: dict[bytes, tuple[bytes, int]] = {}
        self.saved: dict[bytes, tuple[bytes, int]] = {}
        self.rig: RemoteStoreRig | None = None
        self.clock = RunningClock()
        super().__init__()
        make_quick(self.patch)

    def open_page_store(self) -> RemoteStore:
        """Opens a store over the same values, with the journal of the one before."""
        if self.rig is None:
            self.rig = RemoteStoreRig(
                self.folder, self.values, settings=MACHINE_SETTINGS, clock=self.clock, hears=False
            )
        else:
            self.rig.open()
        return self.rig.store

    @property
    def engine_works(self) -> bool:
        """True unless calls of the engine fail or wait."""
        assert self.rig is not None
        faults = self.rig.engine.faults
        return not faults.is_hung and faults.error is None

    @property
    def is_reliable(self) -> bool:
        """Always: a removal that waits hides its namespace, and its journal outlives the store."""
        return True

    @property
    def patience(self) -> float:  # type: ignore[override]
        """An operator does not wait: most removals are carried out later."""
        return 0.0

    @property
    def seconds(self) -> float:
        """Waits for an engine that works."""
        return LIMIT if self.engine_works else SOON

    def recover(self) -> None:
        """Ends all faults, and waits until the store has heard of it."""
        assert self.rig is not None
        self.rig.engine.set(corrupts=lambda _: False, loses=lambda _: False)
        self.rig.come_back()
        self.rig.settle()
        wait_until(lambda: not self.world.cache.disk_reads)

    def settle(self) -> None:
        """Runs the keeper until nothing is under way."""
        self.recover()
        super().settle()

    @rule()
    def works_again(self) -> None:
        """Ends all faults."""
        self.recover()

    @rule()
    def hang(self) -> None:
        """Makes reads and writes of values wait."""
        assert self.rig is not None
        self.rig.hold()

    @rule()
    def fail(self) -> None:
        """Cuts the line, without a word to the store."""
        assert self.rig is not None
        self.rig.engine.set(error=EngineUnreachable("a test cut the line"))

    @rule()
    def notice(self) -> None:
        """Cuts the line until the store knows that the engine is away."""
        assert self.rig is not None
        self.rig.go_away()

    @rule(kind=st.sampled_from(["corrupts", "loses"]))
    def spoil(self, kind: str) -> None:
        """Makes the engine change or lose values."""
        assert self.rig is not None
        self.rig.engine.set(**{kind: lambda name: name.startswith(b"kv1/") and name[-1] % 2})

    def names(self, prefix: bytes) -> list[bytes]:
        """Returns the names of the engine's values in order, while threads change them."""
        return sorted(each for each in list(self.values) if each.startswith(prefix))

    @rule(data=st.data(), controls=st.booleans())
    def evict_a_value(self, data: st.DataObject, *, controls: bool) -> None:
        """Makes the engine forget a page, or a control value."""
        prefix = b"kvr/" if controls else b"kv1/"
        number = data.draw(st.integers(0, 255))
        names = self.names(prefix)
        if names:
            self.values.pop(names[number % len(names)], None)

    @rule(data=st.data())
    def exchange_values(self, data: st.DataObject) -> None:
        """Gives a page, or a control value, the value of another."""
        numbers = data.draw(st.integers(0, 255)), data.draw(st.integers(0, 255))
        names = self.names(b"")
        if names:
            one, two = (names[each % len(names)] for each in numbers)
            self.values[one] = self.values.get(two, (b"", 0))

    @rule()
    def save(self) -> None:
        """Takes a backup of the engine."""
        self.saved = dict(self.values)

    @rule()
    def restore(self) -> None:
        """Restores the backup, with revisions and pages of before."""
        self.values.clear()
        self.values.update(self.saved)
        COUNTS["states restored"] += 1

    @rule(path=PATHS, length=st.integers(0, 3))
    def restore_what_was_removed(self, path: Path_, length: int) -> None:
        """Removes a prefix, restores the engine of before, and asks for it."""
        self.write(path, is_kept=True)
        self.settle()
        before = dict(self.values)
        self.remove(path, length)
        assert self.rig is not None
        self.rig.settle()
        self.values.clear()
        self.values.update(before)
        self.evict(8)
        self.match(path)
        COUNTS["removals rolled back"] += 1

    def stop(self) -> None:
        """Ends the store whatever the engine does."""
        super().stop()

    def check_rest(self) -> None:
        """Ends the faults before."""
        self.recover()
        super().check_rest()

    def teardown(self) -> None:
        """Removes the files too."""
        super().teardown()
        shutil.rmtree(self.folder)


class RemoteHost(Host):
    """A host over a remote store. ``values`` are those of the engine that the hosts share."""

    def __init__(
        self,
        number: int,
        folder: Path,
        values: dict[bytes, tuple[bytes, int]],
        *,
        has_disk: bool,
    ) -> None:
        self.clock = RunningClock()
        self.rig: RemoteStoreRig | None = None
        self.folder = folder
        self.values = values
        super().__init__(number, SharedMedium(), has_disk=has_disk)

    @property
    def opened(self) -> RemoteStoreRig:
        """The rig, which is there once the host has started."""
        assert self.rig is not None
        return self.rig

    def open_far(self) -> SharedPageStore:
        """Returns a store over the same values, with the journal of the one before."""
        if self.rig is None:
            assert self.clock is not None
            self.rig = RemoteStoreRig(
                self.folder, self.values, settings=MACHINE_SETTINGS, clock=self.clock, hears=False
            )
        else:
            self.rig.open()
        return self.rig.store

    def _known(self) -> dict[int, Revision]:
        with self.opened.store._namespaces.record(self.digest) as record:
            return dict(record.known)

    @property
    def seen(self) -> int:
        """The fewest removals that it heard of in any shard in use."""
        known = self._known()
        return min((each.counter for each in known.values()), default=0)

    @property
    def revision(self) -> int:
        """The removals that it knows of now that all of its own are acknowledged."""
        return max((each.counter for each in self._known().values()), default=0)

    @property
    def owes(self) -> bool:
        """True while the namespace is hidden: a removal is owed, or not heard of."""
        return self.digest in self.opened.hidden

    @property
    def waiting_count(self) -> int:
        """None: threads carry the calls out."""
        return 0

    @property
    def waits(self) -> bool:
        """True while calls may wait or fail."""
        faults = self.opened.engine.faults
        return faults.is_hung or faults.error is not None

    def hold(self) -> None:
        """Makes reads and writes of values wait."""
        self.opened.hold()

    def let_go(self) -> None:
        """Lets them go on."""
        self.opened.let_go()

    def go_away(self) -> None:
        """Cuts the line without a word."""
        self.opened.engine.set(error=EngineUnreachable("a test cut the line"))

    def come_back(self) -> None:
        """Connects it, and waits until it has heard of everything."""
        self.opened.come_back()
        self.opened.settle()
        wait_until(lambda: not self.world.cache.disk_reads)

    def remove(self, prefix: Path_) -> None:
        """Removes a prefix, and waits for the engine if it works."""
        super().remove(prefix)
        if self.is_well:
            self.opened.settle()

    def finish_writes(self) -> None:
        """Waits for the threads that write."""
        wait_until(lambda: not self.opened.store.use().queued_bytes)

    @property
    def is_well(self) -> bool:
        """True if calls of the engine work, and the store knows it."""
        return not self.waits and self.opened.store.state is StoreState.OPEN

    def listen(self) -> None:
        """Applies what it heard of, unless the engine is away."""
        if self.is_well:
            self.opened.settle()

    def match(self, path: Path_) -> tuple[list[bytes], int]:
        """Matches a path, and waits for a load that takes longer than the match.

        One that began before a removal may end after it.
        """
        is_well = self.is_well
        found = super().match(path)
        if is_well:
            wait_until(lambda: not self.world.cache.disk_reads)
        return found


class RemoteHostMachine(HostMachine):
    """Two hosts over remote stores on one engine."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="remote-hosts-"))
        super().__init__()
        make_quick(self.patch)

    def make_hosts(self) -> list[Host]:
        """Returns the hosts, the second of which has a disk."""
        values: dict[bytes, tuple[bytes, int]] = {}
        return [
            RemoteHost(number, self.folder / str(number), values, has_disk=bool(number))
            for number in (0, 1)
        ]

    def teardown(self) -> None:
        """Removes the files too."""
        super().teardown()
        shutil.rmtree(self.folder)
