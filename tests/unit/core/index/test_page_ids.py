"""The ids of a node's pages, as runs."""

from kvstore.core.index.page_ids import IdRun, PageIds


def ids_of(ids: PageIds, count: int) -> list[int]:
    """Returns the ids of so many pages."""
    return [ids.at(page) for page in range(count)]


def three_runs() -> PageIds:
    """Returns the ids of seven pages: 5, 6, 9, 10, 11, 20 and 21."""
    ids = PageIds(5)
    ids.append(2, 9)
    ids.append(5, 20)
    return ids


def test_pages_that_follow_are_one_run() -> None:
    """Ids that go on need no run of their own."""
    ids = PageIds(5)
    ids.append(2, 7)
    assert ids.runs == [IdRun(0, 5)]
    assert ids_of(three_runs(), 7) == [5, 6, 9, 10, 11, 20, 21]


def test_a_cut_keeps_the_first() -> None:
    """Pages that go take their runs along."""
    ids = three_runs()
    ids.cut(6)
    assert ids.runs == [IdRun(0, 5), IdRun(2, 9), IdRun(5, 20)]
    ids.cut(5)
    assert ids.runs == [IdRun(0, 5), IdRun(2, 9)]
    ids.cut(1)
    assert ids.runs == [IdRun(0, 5)]


def test_what_is_divided_is_joined_again() -> None:
    """Both parts of a cut, wherever it is, have their pages' ids, and together all of them."""
    for pages in range(1, 7):
        lower = three_runs()
        upper = lower.divide(pages)
        every = [5, 6, 9, 10, 11, 20, 21]
        assert (ids_of(upper, pages), ids_of(lower, 7 - pages)) == (every[:pages], every[pages:])
        lower.join(upper, pages)
        assert ids_of(lower, 7) == every


def test_a_part_has_the_ids_of_its_pages() -> None:
    """As runs, wherever it begins and ends."""
    ids = three_runs()
    for first in range(7):
        for last in range(first + 1, 8):
            parts = ids.between(first, last)
            assert all(parts)
            assert [each for part in parts for each in part] == ids_of(ids, 7)[first:last]
    assert PageIds(5).between(1, 4) == (range(6, 9),)
