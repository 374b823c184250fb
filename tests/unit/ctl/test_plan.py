"""The plan of a load that stays within its share of the pool."""

import pytest

from kvstore.v1 import store_pb2
from kvstore_ctl.bench.command import percentile, plan_of
from kvstore_ctl.bench.scratch_namespace import Before, Pool, tier_3_at_risk, tier_3_evicted

# A prefix of 32 pages, a suffix of 8.
PAGES = (32, 8)


def test_a_load_keeps_within_its_share() -> None:
    """All cached and held pages together are less than the share of the slots."""
    plan = plan_of(Pool(4000, 4000, 0), 0.1, 2, 4, PAGES)
    assert plan.most_pages == 4 * 32 + 2 * (32 + 8) + plan.kept_suffixes * 2 * 8
    assert 400 - 16 < plan.most_pages <= 400
    assert plan.evicts_others == 0


def test_what_others_may_lose_is_said() -> None:
    """The pages that the pool has not free are evicted from others, at most all of theirs."""
    full = plan_of(Pool(4000, 100, 3900), 0.1, 2, 4, PAGES)
    assert full.evicts_others == full.most_pages - 100
    assert plan_of(Pool(4000, 100, 20), 0.1, 2, 4, PAGES).evicts_others == 20


def test_too_small_a_pool_is_refused() -> None:
    """The error says how many pages are needed and how large the share is."""
    with pytest.raises(ValueError, match=r"need 224 pages.*0\.1 of the pool's 100 slots is 10"):
        plan_of(Pool(100, 100, 0), 0.1, 2, 4, PAGES)


def test_a_large_pool_is_not_filled() -> None:
    """A client keeps a bounded number of suffixes in any pool."""
    assert plan_of(Pool(10**6, 10**6, 0), 1.0, 2, 4, PAGES).kept_suffixes == 64


def test_percentiles_are_of_what_was_seen() -> None:
    """A percentile is the least seen value that is no smaller than that share of all."""
    values = [float(each) for each in range(100)]
    assert [percentile(values, share) for share in (0.5, 0.99, 1.0)] == [50.0, 99.0, 99.0]
    assert percentile([7.0], 0.5) == 7.0


@pytest.mark.parametrize(
    ("tier_3", "said"),
    [
        ({"state": "STATE_ABSENT"}, ""),
        # A failed tier 3 still serves if it only failed to forget some pages.
        ({"state": "STATE_FAILED", "size_bytes": 1 << 30, "page_count": 5}, "5 pages in tier 3"),
        ({"state": "STATE_OPEN", "size_bytes": 1 << 30}, ""),
        ({"state": "STATE_OPEN", "size_bytes": 1 << 30, "page_count": 1}, "1 page in tier 3"),
        ({"state": "STATE_OPEN"}, "the pages in tier 3"),
    ],
)
def test_which_pages_of_the_disk_may_go(tier_3: dict[str, object], said: str) -> None:
    """The text counts the disk's pages, or says that there are some if the number is unknown."""
    assert tier_3_at_risk(store_pb2.Tier3Stats(**tier_3)) == said


def test_what_left_the_disk_is_since_then() -> None:
    """Pages evicted from the disk are counted since the start, if their number is known."""
    before = Before(0, 0, has_room=True, tier_3_evicted=3, tier_3_at_risk="")
    told = store_pb2.Tier3Stats(size_bytes=1 << 30, evicted_page_count=10)
    assert tier_3_evicted(told, before) == {"evicted_pages_of_tier_3": 7}
    assert tier_3_evicted(store_pb2.Tier3Stats(), before) == {}
