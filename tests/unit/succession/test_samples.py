"""Samples of inherited extents: how many pages are read, when, and which count."""

from array import array

from xxhash import xxh3_64_intdigest

from kvstore.core.values.slots import CACHED, NO_CHECKSUM, ExtentSlots
from kvstore.succession.samples import MOST_BEFORE_ANSWERS, Samples

PAGE = b"page"


class Memory:
    """Some extents of eight cached pages each, and what is read of them."""

    def __init__(self, count: int, *, checksum: int | None = None) -> None:
        self.read: list[tuple[int, int]] = []
        self.wrong: set[int] = set()
        digest = xxh3_64_intdigest(PAGE) if checksum is None else checksum
        self.extents = [ExtentSlots(number, 8) for number in range(1, count + 1)]
        for each in self.extents:
            each.states[:] = bytes([CACHED]) * 8
            each.checksums[:] = array("Q", [digest] * 8)
        self.samples = Samples(self.extents, self.reader)

    def reader(self, extent_id: int):  # type: ignore[no-untyped-def]  # noqa: ANN201
        """Returns what reads an extent's slots."""

        def read(index: int) -> memoryview:
            self.read.append((extent_id, index))
            return memoryview(b"wrong" if extent_id in self.wrong else PAGE)

        return read


def test_few_pages_are_read_before_the_first_answer() -> None:
    """Two of each of a few extents, and the others later, each once."""
    memory = Memory(20)
    assert memory.samples.prove_some()
    assert len(memory.read) == MOST_BEFORE_ANSWERS
    assert memory.samples.prove([1, 2, 20]) == []
    assert len(memory.read) == MOST_BEFORE_ANSWERS + 2
    assert memory.samples.prove_all() == []
    assert len(memory.read) == len(set(memory.read)) == 40
    assert memory.samples.prove_all() == memory.samples.prove([1]) == []
    assert len(memory.read) == 40


def test_a_wrong_extent_stays_wrong() -> None:
    """It is never sampled anew, and it is named each time."""
    memory = Memory(7)
    memory.wrong = {6, 7}
    assert memory.samples.prove_some()
    assert memory.samples.prove([5, 6]) == [6]
    memory.wrong.clear()
    assert memory.samples.prove([6, 5]) == [6]
    assert memory.samples.wrong == {6}


def test_a_wrong_extent_among_the_first_is_found() -> None:
    """Then nothing of the memory can be used."""
    memory = Memory(3)
    memory.wrong = {2}
    assert not memory.samples.prove_some()


def test_pages_without_checksums_are_not_read() -> None:
    """Their extent is known by the kernel's name of its memory alone."""
    memory = Memory(2, checksum=NO_CHECKSUM)
    assert memory.samples.prove_some()
    assert memory.read == []


def test_a_page_that_is_evicted_meanwhile_says_nothing() -> None:
    """Somebody else may write its slot by then."""
    memory = Memory(1)
    [extent] = memory.extents

    def evict_and_read(index: int) -> memoryview:
        extent.generations[index] += 1
        return memoryview(b"of another page")

    assert Samples([extent], lambda _: evict_and_read).prove_some()
