"""Two writers of one prefix: one copy is kept, and no slot is lost."""

import pytest

from pages.stamped_pages import page_count, prompt
from processes.page_worker import Raced
from processes.worker_fleet import POOL_SLOTS, Fleet, Slots

ROUNDS = 12
PAGES = page_count(prompt(0, 1))


@pytest.mark.parametrize("abreast", [True, False], ids=["abreast", "free"])
def test_two_writers_of_a_prefix_make_one_copy(
    fleet: Fleet,
    abreast: bool,  # noqa: FBT001  # a parameter of pytest's
) -> None:
    """Two writers of a prefix get the same slots for each page, and keep their other slots."""
    barrier = fleet.barrier(2)
    writers = [fleet.spawn(name, barrier=barrier) for name in ("first", "second")]
    reader = fleet.spawn("reader")
    for number in range(ROUNDS):
        tokens = prompt(2 * number, 2 * number + 1)
        for each in writers:
            each.tell("race", "path", tokens, abreast=abreast)
        results: list[Raced] = [each.answer() for each in writers]
        path = results[0].path
        assert path == results[1].path
        assert len(set(path)) == PAGES

        # One copy, and of each page exactly one writer is told that it is its own.
        winners = [
            [w.name for w, result in zip(writers, results, strict=True) if result.published[page]]
            for page in range(PAGES)
        ]
        assert {len(each) for each in winners} == {1}
        (namespace,) = fleet.stats().namespaces
        assert namespace.cached_page_count == PAGES
        assert [stamp.writer for stamp in reader.ask("stamps", tokens)] == [w for (w,) in winners]

        # A duplicate is still its writer's, to write as it likes, and nobody reads it.
        duplicates = [page for result in results for page in result.own if page not in path]
        assert len(duplicates) == len(set(duplicates))
        assert len(duplicates) == PAGES or not abreast
        slots = Slots(POOL_SLOTS - PAGES - len(duplicates), len(duplicates), PAGES)
        assert fleet.slots() == slots
        assert all(each.ask("own_pages_are_untouched", "path") for each in writers)
        before = reader.ask("stamps", tokens)
        for each in writers:
            each.ask("overwrite_duplicates", "path", path)
        assert reader.ask("stamps", tokens) == before

        # Until aborted: then every slot is free or cached, and the next round begins anew.
        for each in writers:
            each.ask("release", "path")
        assert fleet.slots() == Slots(POOL_SLOTS - PAGES, 0, PAGES)
        assert fleet.evict([]) == (PAGES, 0)
        assert fleet.slots() == Slots(POOL_SLOTS)
    counters = fleet.stats().counters
    assert counters.inserted_page_count == ROUNDS * PAGES
    assert counters.duplicate_page_count >= (ROUNDS * PAGES if abreast else 0)
    assert counters.evicted_page_count == 0
