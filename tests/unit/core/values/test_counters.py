"""Counters of what was asked and given."""

from dataclasses import fields

import pytest

from kvstore.core.values.counters import Counters, Lookup, count_lookup


@pytest.mark.parametrize(
    ("matched", "matchable", "kind"),
    [
        (0, 4, "miss_count"),
        (0, 0, "miss_count"),
        (4, 4, "full_hit_count"),
        (2, 4, "partial_hit_count"),
    ],
)
def test_a_lookup_is_a_full_hit_a_partial_hit_or_a_miss(
    matched: int, matchable: int, kind: str
) -> None:
    """A lookup counts as exactly one kind, by what matched of what could."""
    counters = Counters()
    count_lookup(Lookup(5, matched, 0, matchable), counters)
    expected = Counters(lookup_count=1, asked_token_count=5, matched_token_count=matched)
    setattr(expected, kind, 1)
    assert counters == expected


def test_lookups_add_up() -> None:
    """Tokens asked and matched are sums over all lookups."""
    counters = Counters()
    count_lookup(Lookup(5, 4, 0, 4), counters)
    count_lookup(Lookup(9, 1, 1, 8, has_next_token=True), counters)
    assert (counters.lookup_count, counters.asked_token_count) == (2, 14)
    assert (counters.matched_token_count, counters.copied_token_count) == (5, 1)
    assert counters.next_token_count == 1


def test_what_a_caller_saves_is_counted_by_its_own_speed() -> None:
    """The tokens of callers that state no speed are not among the timed ones."""
    counters = Counters()
    count_lookup(Lookup(500, 300, 100, 499, prefill_tokens_per_second=200), counters)
    count_lookup(Lookup(500, 400, 0, 499, prefill_tokens_per_second=3_000_000), counters)
    count_lookup(Lookup(500, 400, 0, 499), counters)
    assert (counters.timed_token_count, counters.saved_prefill_us) == (800, 2_000_133)


def test_adding_adds_every_counter() -> None:
    """No counter is left out of a sum."""
    names = [field.name for field in fields(Counters)]
    one = Counters(**{name: k for k, name in enumerate(names)})
    other = Counters(**{name: 100 * k for k, name in enumerate(names)})
    one.add(other)
    assert one == Counters(**{name: 101 * k for k, name in enumerate(names)})


def test_a_copy_stays_what_it_was() -> None:
    """Counting on does not change a copy."""
    counters = Counters(miss_count=1)
    copy = counters.copy()
    counters.miss_count += 1
    assert copy == Counters(miss_count=1)


def test_zero_is_nothing_counted() -> None:
    """Counters are zero until anything at all was counted."""
    assert Counters().is_zero()
    for field in fields(Counters):
        assert not Counters(**{field.name: 1}).is_zero()


def test_what_was_counted_since_is_a_difference() -> None:
    """The difference is that of each count, and changes neither side."""
    before = Counters(lookup_count=2, removed_page_count=1)
    after = Counters(lookup_count=5, removed_page_count=1, saved_prefill_us=7)
    assert after.less(before) == Counters(lookup_count=3, saved_prefill_us=7)
    assert before.lookup_count == 2
