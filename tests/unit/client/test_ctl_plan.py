"""How a load keeps within its share of the pool."""

import pytest

from kvstore_client.ctl_bench import percentile, plan_of
from kvstore_client.ctl_scratch import Pool

# A beginning of 32 pages, a suffix of 8.
PAGES = (32, 8)


def test_a_load_keeps_within_its_share() -> None:
    """All that is cached and held at once is less than the share of the slots."""
    plan = plan_of(Pool(4000, 4000, 0), 0.1, 2, 4, PAGES)
    assert plan.most_pages == 4 * 32 + 2 * (32 + 8) + plan.kept_suffixes * 2 * 8
    assert 400 - 16 < plan.most_pages <= 400
    assert plan.evicts_others == 0


def test_what_others_may_lose_is_said() -> None:
    """What the pool has not free comes from others, as many as there are."""
    full = plan_of(Pool(4000, 100, 3900), 0.1, 2, 4, PAGES)
    assert full.evicts_others == full.most_pages - 100
    assert plan_of(Pool(4000, 100, 20), 0.1, 2, 4, PAGES).evicts_others == 20


def test_too_small_a_pool_is_refused() -> None:
    """It says what is needed, and how to have it."""
    with pytest.raises(ValueError, match=r"need 224 pages.*0\.1 of the pool's 100 slots is 10"):
        plan_of(Pool(100, 100, 0), 0.1, 2, 4, PAGES)


def test_a_large_pool_is_not_filled() -> None:
    """A client keeps a bounded number of suffixes, however much room there is."""
    assert plan_of(Pool(10**6, 10**6, 0), 1.0, 2, 4, PAGES).kept_suffixes == 64


def test_percentiles_are_of_what_was_seen() -> None:
    """The least value that is no smaller than that share of all."""
    values = [float(each) for each in range(100)]
    assert [percentile(values, share) for share in (0.5, 0.99, 1.0)] == [50.0, 99.0, 99.0]
    assert percentile([7.0], 0.5) == 7.0
