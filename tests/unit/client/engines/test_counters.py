"""The connector's counters and their text."""

import re
from collections import Counter

from kvstore_client.engines.counters import (
    COUNTED,
    METRICS,
    OUTCOMES,
    TIERS,
    count_loaded,
    in_words,
    note_attached,
    summed,
)

RANK = {"load_bytes": 3_000_000, "load_microseconds": 1_500, "save_bytes": 1}
STEP = {
    "lookups_full": 2,
    "lookups_miss": 1,
    "asked_tokens": 300,
    "loaded_tokens_1": 120,
    "loaded_tokens_3": 80,
    "loaded_tokens_4": 40,
    "prefetched_tokens": 20,
}


def test_ranks_and_steps_add_up() -> None:
    """The sum has the bytes of all ranks and the lookups of all steps."""
    total = summed(RANK, RANK, STEP, {})
    assert total["load_bytes"] == 6_000_000
    assert total["lookups_full"] == 2
    assert summed() == {}


def test_an_interval_reads_as_one_line() -> None:
    """Zero counts are left out, and rates are those of the interval."""
    assert in_words(summed(RANK, STEP, {"inserts_failed": 1, "saves_failed": 1})) == {
        "kvstore lookups": 3,
        "full": 2,
        "miss": 1,
        "asked tokens": 300,
        "loaded tokens": 240,
        "of them from disk": 80,
        "of them from remote": 40,
        "prefetched tokens": 20,
        "loaded MB": 3.0,
        "loaded MB/s": 2000,
        "failed saves": 2,
    }
    assert in_words({}) == {}


def test_whether_the_store_is_used_is_the_latest() -> None:
    """Only the latest state is reported, so a change that was undone is not."""
    counts: Counter[str] = Counter()
    note_attached(counts, attached=True)
    assert counts == {"attached": 1}
    note_attached(counts, attached=False)
    note_attached(counts, attached=False)
    assert counts == {"not_attached": 1}
    assert in_words(counts) == {"not attached": 1}


def test_every_metric_is_counted_and_has_a_unit() -> None:
    """Each metric is counted once, and its name is the store's own with a unit."""
    assert {each.metric for each in COUNTED} == set(METRICS)
    assert len({each.key for each in COUNTED}) == len(COUNTED)
    for each in COUNTED:
        assert bool(each.label) == bool(METRICS[each.metric][1])
        assert re.fullmatch(
            "kvstore_[a-z]+(_(tokens|bytes|seconds|loads|saves|hints))?", each.metric
        )
    assert {each.label for each in COUNTED if each.label} == {*OUTCOMES, *TIERS.values()}


def test_loaded_tokens_are_counted_by_tier() -> None:
    """Each page counts in the tier that had it."""
    counts: Counter[str] = Counter()
    count_loaded(counts, {1: 3, 3: 2}, 16)
    count_loaded(counts, {3: 1, 4: 1}, 16)
    assert counts == {"loaded_tokens_1": 48, "loaded_tokens_3": 48, "loaded_tokens_4": 16}
