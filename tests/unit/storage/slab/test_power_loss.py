"""Loss of power at any moment: what was promised holds, whatever was not synced is lost."""

from concurrent.futures import Future
from functools import partial
from pathlib import Path
from random import Random

import pytest

from kvstore.storage.page_store import PageWrite
from kvstore.storage.slab.header import HEADER_BYTES, Place, SlotHeader
from kvstore.storage.slab.layout import layout_of
from kvstore.storage.slab.policy import SlabClock
from kvstore.storage.slab.slab import Slab
from slab.power import PowerLog, Said
from slab.rig import LIMIT, NAMESPACE, SlabRig, config, key, memory

SIZES = (4096, 12288)
SEGMENTS, SEGMENT_BYTES = 4, 48 << 10
STEPS = 40
CRASHES = 25


class Workload:
    """Writes and removals at random, some under way at once, and what was said of each page."""

    def __init__(self, rig: SlabRig, log: PowerLog, rng: Random) -> None:
        self._rig = rig
        self._log = log
        self._rng = rng
        self._begun: list[Future[bool]] = []
        self.sizes: dict[int, int] = {}
        self.parents: dict[int, int | None] = {}
        self.left: set[int] = set()

    def run(self) -> None:
        """Does all steps, and waits for the last."""
        for _ in range(STEPS):
            self._rng.choice((self._write, self._write, self._remove))()
            if self._rng.random() < 0.5:
                self._wait()
        self._wait()

    def _write(self) -> None:
        size = self._rng.choice(SIZES)
        parent = None
        for _ in range(self._rng.randint(1, 4)):
            number = len(self.sizes)
            self.sizes[number], self.parents[number] = size, parent
            begun = self._rig.begin(number, parent, size=size)
            assert begun is not None
            begun.add_done_callback(partial(self._say, "acknowledged", number))
            self._begun.append(begun)
            parent = number

    def _remove(self) -> None:
        numbers = [number for number in self.sizes if number not in self.left]
        if not numbers:
            return
        gone = {self._rng.choice(numbers)}
        while more := {n for n, parent in self.parents.items() if parent in gone} - gone:
            gone |= more
        self.left |= gone
        for number in gone:
            self._log.add(Said("leaving", number))
        done: Future[bool] = Future()
        for number in gone:
            done.add_done_callback(partial(self._say, "removed", number))
        self._rig.slab.remove([key(number) for number in gone], done.set_result)
        self._begun.append(done)

    def _say(self, what: str, number: int, answer: "Future[bool]") -> None:
        if answer.result():
            self._log.add(Said(what, number))

    def _wait(self) -> None:
        for each in self._begun:
            each.result(LIMIT)
        self._begun.clear()


@pytest.mark.parametrize("policy", [None, SlabClock], ids=["owner decides", "clock"])
@pytest.mark.parametrize("seed", [1, 2])
def test_what_was_promised_holds_after_a_loss_of_power(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, policy: type[SlabClock] | None
) -> None:
    """Acknowledged pages are served, removed ones are not, and no header is without its bytes."""
    log, rng = PowerLog(), Random(seed)
    rig = SlabRig(config(tmp_path / "slab", SEGMENTS, SEGMENT_BYTES), policy and policy())
    before = rig.settings.path.read_bytes()
    with monkeypatch.context() as context:
        log.listen(context)
        workload = Workload(rig, log, rng)
        workload.run()
        rig.slab.close()
    assert log.said("acknowledged", len(log.events))
    assert log.said("removed", len(log.events))
    evicted = {number for number in workload.sizes if key(number) in rig.lost}
    assert bool(evicted) == (policy is not None)
    for _ in range(CRASHES):
        at = rng.randint(0, len(log.events))
        log.leave_disk(tmp_path / "crashed", before, at, rng)
        crashed = SlabRig(config(tmp_path / "crashed", SEGMENTS, SEGMENT_BYTES))
        served = {
            number
            for size in SIZES
            for number in crashed.found(
                *(each for each, own in workload.sizes.items() if own == size), size=size
            )
        }
        assert served >= log.said("acknowledged", at) - log.said("leaving", at) - evicted
        assert not served & log.said("removed", at)
        counters = crashed.slab.use().counters
        assert counters.corrupt_pages == counters.torn_slots == 0
        crashed.slab.close()


def test_bytes_of_a_page_never_become_headers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table that replaces a tenant's bytes never shows those bytes as a table."""
    # The page is that of a tenant who knows the slab's id and the next cut's number.
    log, rng = PowerLog(), Random(1)
    settings = config(tmp_path / "slab", segments=1)
    rig = SlabRig(settings)
    slab = rig.slab._file.superblock.slab
    large, small = (layout_of(settings.segment_bytes, size) for size in (65536, 4096))
    first = (large.table_bytes) // HEADER_BYTES
    assert small.table_bytes > large.table_bytes
    forged = SlotHeader(key(99), NAMESPACE, 16, 1, 1)
    content = memory(65536)
    content[:] = b"".join(
        forged.encode(Place(slab, 3, first + number)) for number in range(65536 // HEADER_BYTES)
    )
    done: Future[bool] = Future()
    rig.slab.write(PageWrite(key(0), NAMESPACE, 16), [content], done.set_result)
    assert done.result(LIMIT)
    assert rig.remove(0)
    before = settings.path.read_bytes()
    with monkeypatch.context() as context:
        log.listen(context)
        assert rig.write(1, size=4096)
        assert rig.slab._tables.pool.segments[0].header.carving == 3
        rig.slab.close()
    for at in [each for each in range(len(log.events) + 1) for _ in range(5)]:
        log.leave_disk(settings.path, before, at, rng)
        rig.slab = Slab(settings)
        counters = rig.slab.use().counters
        assert counters.torn_slots == counters.orphaned_pages == 0
        assert not rig.slab.look([key(99)])
        rig.slab.close()
