"""The oracle of benchmarks/outlive.py, on made-up acknowledgements and tables."""

from ctypes import c_ubyte
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from xxhash import xxh3_64_intdigest

from kvstore_client import Match, PageRef
from support.page_stamps import Stamp, page_keys, stamped
from support.succession.acknowledged import Acknowledged, Kind, Row, RowWriter
from support.succession.conversations import LAYOUT, PAGE_TOKENS, SHARED_TOKENS, tokens_of
from support.succession.load import Mappings
from support.succession.oracle import Oracle, changed
from support.succession.tables import Snapshot

# The first of its family, which stands for all of them at the shared pages.
NUMBER = 0
# The first page after the shared ones, whole.
END = SHARED_TOKENS + PAGE_TOKENS
EXTENT = 7


class _Pages(list[PageRef]):
    """Pages whose answer named no generations."""

    dated_runs = ()


class _Store:
    """A namespace and tables of a store with one page in each slot of one extent."""

    def __init__(self) -> None:
        self.generations = [0, 0, 0, 0]
        self.source: SimpleNamespace | None = None
        self.pages = [PageRef(EXTENT, slot) for slot in range(3)]
        keys = list(page_keys(tokens_of(NUMBER, END), PAGE_TOKENS))
        self.contents = [
            bytearray(stamped(key, Stamp("writer", slot), LAYOUT.page_bytes))
            for slot, key in enumerate(keys)
        ]

    def match(self, _: bytes) -> Match:
        source: Any = self.source
        return Match(pages=_Pages(self.pages), source=source)  # type: ignore[arg-type]

    def snapshot(self) -> dict[int, memoryview]:
        table = b"".join(each.to_bytes(8, "little") for each in self.generations)
        return {EXTENT: memoryview(table).cast("Q")}

    def follow(self) -> None:
        pass

    def generation(self, place: PageRef) -> int:
        return self.generations[place.slot]

    def content(self, place: PageRef) -> memoryview:
        return memoryview(self.contents[place.slot])

    def row(self, slot: int, **changed: int) -> Row:
        checksum = xxh3_64_intdigest(self.contents[slot])
        end = (slot + 1) * PAGE_TOKENS
        return Row(Kind.PAGE, NUMBER, end, EXTENT, slot, 0, checksum)._replace(**changed)


class _Case:
    def __init__(self, folder: Path) -> None:
        self.store = _Store()
        self.writer = RowWriter(folder / "client")
        self.acknowledged = Acknowledged(folder)
        store: Any = self.store
        self.oracle = Oracle(store, store, self.acknowledged)

    def counts(
        self, before: Snapshot | None = None, after: Snapshot | None = None
    ) -> dict[str, int]:
        now = self.store.snapshot()
        self.oracle.check(before or now, after or now)
        return {name: count for name, count in self.oracle.counts.items() if count}


@pytest.fixture
def case(tmp_path: Path) -> _Case:
    """Provides an oracle, and a store whose three pages were acknowledged."""
    made = _Case(tmp_path)
    made.writer.write(made.store.row(slot) for slot in range(3))
    return made


def test_pages_that_are_there_are_found(case: _Case) -> None:
    """Each is in its slot, with its bytes."""
    assert case.counts() == {"checked_pages": 3, "found_pages": 3}


def test_a_page_that_a_match_does_not_find_is_lost(case: _Case) -> None:
    """Its generation says that nobody freed its slot."""
    del case.store.pages[2]
    assert case.counts()["lost_pages"] == 1


def test_a_page_in_another_slot_is_lost(case: _Case) -> None:
    """A copy elsewhere is not what was acknowledged."""
    case.store.contents.append(case.store.contents[2])
    case.store.pages[2] = PageRef(EXTENT, 3)
    assert case.counts()["lost_pages"] == 1


def test_a_page_that_a_recovery_freed_is_lost(case: _Case) -> None:
    """Nobody evicts between the two snapshots."""
    before = case.store.snapshot()
    case.store.generations[2] += 1
    del case.store.pages[2]
    assert case.counts(before)["lost_pages"] == 1


def test_a_page_that_was_evicted_before_or_after_is_not_lost(case: _Case) -> None:
    """Before: the first snapshot says so. After: the table does when a match does not find it."""
    case.store.generations[2] += 1
    served = case.store.pages.pop()
    assert "lost_pages" not in case.counts()
    case.store.pages.append(served)
    started = case.store.snapshot()
    case.store.generations[1] += 1
    del case.store.pages[1:]
    counts = case.counts(started, started)
    assert (counts["evicted_pages"], "lost_pages" in counts) == (1, False)


def test_another_byte_is_wrong(case: _Case) -> None:
    """A checksum shows it in an acknowledged page, and a stamp in any other one."""
    case.store.contents[1][100] ^= 1
    assert case.counts()["wrong_pages"] == 1
    case.acknowledged.forget(case.acknowledged.pages[PageRef(EXTENT, 1)])
    assert case.counts()["wrong_pages"] == 2


def test_a_generation_that_moves_under_a_pin_is_wrong(case: _Case) -> None:
    """An old server that goes on would do that."""
    before = case.store.snapshot()
    case.store.generations[2] += 1
    assert case.counts(before, before)["wrong_pages"] == 1


def test_a_slot_with_two_pages_is_a_conflict(case: _Case) -> None:
    """A generation of a slot stands for one page; clients may be told of it more than once."""
    case.writer.write([case.store.row(1), case.store.row(0, conversation=NUMBER + 1)])
    case.acknowledged.read()
    assert case.acknowledged.conflicts == 0
    case.writer.write([case.store.row(1, end=END)])
    case.acknowledged.read()
    assert case.acknowledged.conflicts == 1


def test_a_partial_page_may_have_been_replaced(case: _Case) -> None:
    """The fuller one is expected, and only that."""
    partial = case.store.row(2, end=END - 5)._replace(slot=3)
    case.writer.write([partial])
    assert case.counts() == {"checked_pages": 3, "found_pages": 3}


@pytest.mark.parametrize("is_there", [True, False])
def test_a_partial_page_may_give_way_to_a_fuller_one_that_was_written(
    tmp_path: Path, *, is_there: bool
) -> None:
    """A server was killed between the record and the answer. Without the other it is lost."""
    case = _Case(tmp_path)
    token_count = PAGE_TOKENS - 1
    partial = case.store.row(2, end=2 * PAGE_TOKENS + token_count)._replace(slot=3)
    case.writer.write([case.store.row(0), case.store.row(1), partial])
    before = case.store.snapshot()
    case.store.generations[3] += 1
    fuller = case.store.pages.pop()
    if is_there:
        case.store.source = SimpleNamespace(page=fuller, token_count=token_count, hold=None)
    counts = case.counts(before)
    expected = (
        {"found_pages": 3, "other_pages": 1} if is_there else {"found_pages": 2, "lost_pages": 1}
    )
    assert counts == {"checked_pages": 3, **expected}


def test_removed_pages_are_not_expected_and_must_not_return(case: _Case) -> None:
    """The shared pages before them stay."""
    case.writer.write([Row(Kind.LEAVING, NUMBER)])
    del case.store.pages[2]
    assert case.counts() == {"checked_pages": 2, "found_pages": 2}
    case.writer.write([Row(Kind.REMOVED, NUMBER)])
    assert "returned_pages" not in case.counts()
    case.store.pages.append(PageRef(EXTENT, 2))
    assert case.counts()["returned_pages"] == 1


def test_changed_generations_are_counted(case: _Case) -> None:
    """Only those of extents that both snapshots have."""
    before = case.store.snapshot()
    case.store.generations[0] += 1
    assert changed(before, case.store.snapshot()) == 1
    assert changed(before, {}) == 0


def test_mappings_that_are_made_anew_are_counted() -> None:
    """Another object for an extent, and another extent for a given-up one; new ones apart."""
    mappings = Mappings()

    def look(*extents: int) -> tuple[int, int]:
        views = {each: memoryview(kept[each]) for each in extents}
        mappings.look(SimpleNamespace(extents=views), counting=True)  # type: ignore[arg-type]
        return mappings.anew, mappings.added

    kept: Any = {each: _memory() for each in (1, 2, 3, 4)}
    mappings.look(SimpleNamespace(extents={1: memoryview(kept[1])}), counting=False)  # type: ignore[arg-type]
    assert look(1) == (0, 0)
    assert look(1, 2) == (0, 1)
    kept[1] = _memory()
    assert look(1, 2) == (1, 1)
    assert look(3, 4) == (3, 1)


def _memory() -> object:
    return (c_ubyte * 8)()
