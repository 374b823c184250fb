"""A match, hit or miss."""

import pytest

from kvstore.v1 import types_pb2
from kvstore_client import errors
from kvstore_client.pages.held_pages import Hold
from kvstore_client.pages.match import LoadedPages, Match
from kvstore_client.pages.reservation import Acquired
from kvstore_client.values.page_runs import PageRef, Pages
from wire.scripted_session import ScriptedSession

pytestmark = pytest.mark.usefixtures("releases_answered")


def hit(attached: ScriptedSession) -> Match:
    """Returns a match of two pages under pin 1."""
    with attached.session.request():
        hold = Hold(attached.session, pin_ids=(1,))
    return Match(hold, [PageRef(3, 0), PageRef(3, 1)], 8)


def test_a_miss_holds_nothing() -> None:
    """A miss has no pages and no pin, and may have the reason of its failure."""
    failure = errors.StoreUnavailable("away")
    with Match(failure=failure) as miss:
        assert (miss.token_count, miss.page_count, miss.pages, miss.pin_id) == (0, 0, [], None)
    miss.release()
    assert miss.failure is failure
    assert Match().failure is None


def test_a_hit_is_pinned_until_its_release(attached: ScriptedSession) -> None:
    """A match has a pin until it is released, once, at the end of its block."""
    with hit(attached) as match:
        assert (match.token_count, match.page_count, match.pin_id) == (8, 2, 1)
    match.release()
    assert match.pin_id is None
    assert attached.session.flush(30)
    assert len(attached.calls.requests["ReleasePins"]) == 1


def test_an_acquired_pair_is_given_back_together(attached: ScriptedSession) -> None:
    """A match and its reservation are released together. A miss has nothing to release."""
    with Acquired(hit(attached)) as acquired:
        assert (acquired.failure, acquired.reservation) == (None, None)
    assert acquired.match.pin_id is None
    failure = errors.StoreUnavailable("away")
    with Acquired(Match(failure=failure)) as missed:
        assert missed.failure is failure


@pytest.mark.parametrize(
    ("loaded", "tiers"),
    [
        ((0, 0), [2, 2]),
        ((1, 0), [2, 3]),
        ((1, 1), [3, 4]),
        ((0, 1), [2, 4]),
        ((9, 0), [3, 3]),
        ((9, 1), [3, 4]),
        ((1, 9), [4, 4]),
    ],
)
def test_the_last_pages_may_have_been_loaded(loaded: tuple[int, int], tiers: list[int]) -> None:
    """A match names 3 and 4 for them, and the memory that the store named for the others."""
    pages = Pages([types_pb2.PageRun(extent_id=3, slot_indexes=[0, 1], tier=types_pb2.TIER_2)])
    match = Match(pages=pages, token_count=8, loaded=LoadedPages(*loaded))
    assert match.page_tiers == tiers
    assert match.loaded_pages == (tiers.count(3), tiers.count(4))
