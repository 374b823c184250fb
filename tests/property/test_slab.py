"""A slab under whatever comes, against a dictionary: what is there is right, and no more."""

import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from hypothesis.strategies import DataObject, data, integers, lists, sampled_from, sets

from kvstore.storage.slab.policy import SlabClock
from slab.laws import check_laws
from slab.rig import SlabRig, config, key

# Each example makes a file and syncs it again and again.
SHARE = 20
SIZES = (4096, 12288)
# Nine slots of the smaller size, three of the larger.
SEGMENT_BYTES = 48 << 10
SEGMENTS = 3


class SlabMachine(RuleBasedStateMachine):
    """Pages are numbered; ``parents`` has each that was ever written, ``sizes`` those there."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="slab-"))
        self.rig = SlabRig(config(self.folder / "slab", SEGMENTS, SEGMENT_BYTES), SlabClock())
        self.parents: dict[int, int | None] = {}
        self.sizes: dict[int, int] = {}
        self.written: dict[int, int] = {}

    def forget(self, numbers: set[int]) -> None:
        """Removes pages from the model."""
        for number in numbers:
            self.sizes.pop(number, None)

    def take_lost(self) -> None:
        """Removes the pages that left the slab by themselves from the model."""
        names = {key(number): number for number in self.parents}
        self.forget({names[each] for each in self.rig.lost})
        self.rig.lost.clear()

    def below(self, tops: set[int]) -> set[int]:
        """Returns pages, and those that come after them by way of pages that are there."""
        found = set(tops)
        while more := {
            number for number in self.sizes if number not in found and self.parents[number] in found
        }:
            found |= more
        return found

    def rooted(self) -> set[int | None]:
        """Returns pages that are there, and so is all that they come after."""
        found: set[int | None] = {None}
        while more := {n for n in self.sizes if n not in found and self.parents[n] in found}:
            found |= more
        return found

    @rule(count=integers(1, 6), size=sampled_from(SIZES), draw=data())
    def write(self, count: int, size: int, draw: DataObject) -> None:
        """Writes a sequence, below a page that was written once or at the root."""
        parent = draw.draw(sampled_from([None, *self.sizes]))
        begun = {}
        for _ in range(count):
            number = len(self.parents)
            self.parents[number] = parent
            self.written[number] = size
            begun[number] = self.rig.begin(number, parent, size=size)
            parent = number
        for number, each in begun.items():
            assert each is not None
            if each.result(60):
                self.sizes[number] = size
        self.take_lost()

    @precondition(lambda self: self.parents)
    @rule(draw=data())
    def write_again(self, draw: DataObject) -> None:
        """Writes a page that was there before, or still is."""
        number = draw.draw(sampled_from([*self.parents]))
        begun = self.rig.begin(number, self.parents[number], size=self.written[number])
        assert (begun is None) == (number in self.sizes)
        if begun is not None and begun.result(60):
            self.sizes[number] = self.written[number]
        self.take_lost()

    @precondition(lambda self: self.parents)
    @rule(draw=data())
    def remove(self, draw: DataObject) -> None:
        """Removes some pages, there or not, and with them what comes after.

        What is below a page that is missing goes too: what that one came after nobody knows.
        """
        numbers = draw.draw(sets(sampled_from([*self.parents]), min_size=1, max_size=4))
        assert self.rig.remove(*numbers)
        self.forget(self.below(numbers))
        self.forget(set(self.sizes) - self.rooted())

    @precondition(lambda self: self.sizes)
    @rule(draw=data())
    def spoil(self, draw: DataObject) -> None:
        """Changes a byte of a page on the disk: it is a miss, and leaves."""
        number = draw.draw(sampled_from([*self.sizes]))
        at = draw.draw(integers(0, self.sizes[number] - 1))
        self.rig.flip([self.rig.slot_offset(number) + at])
        assert self.rig.found(number, size=self.sizes[number]) == []
        assert self.rig.lost == [key(number)]
        self.take_lost()
        assert self.rig.remove()  # its header's turn has come by then

    @rule(torn=lists(integers(0, 5), max_size=1))
    def restart(self, torn: list[int]) -> None:
        """Closes and open again, perhaps with a torn header: what hangs together is there."""
        there = list(self.sizes)
        spoiled = {there[each] for each in torn if each < len(there)}
        offsets = [self.rig.header_offset(number) + 60 for number in spoiled]
        self.rig.slab.close()
        self.rig.flip(offsets)
        self.rig.reopen(SlabClock())
        self.forget(spoiled)
        self.forget(set(self.sizes) - self.rooted())
        assert self.rig.remove()  # what was dropped is gone by then

    @invariant()
    def what_is_there_is_right(self) -> None:
        """Every page of the model is served with its bytes, no other one is, and the laws hold."""
        for size in SIZES:
            numbers = [number for number, each in self.written.items() if each == size]
            expected = [number for number in numbers if number in self.sizes]
            assert self.rig.found(*numbers, size=size) == expected
        check_laws(self.rig.slab)

    def teardown(self) -> None:
        """Closes the slab, and removes its file."""
        self.rig.slab.close()
        shutil.rmtree(self.folder)


TestSlab = SlabMachine.TestCase
TestSlab.settings = settings(
    max_examples=max(settings().max_examples // SHARE, 10), stateful_step_count=15
)
