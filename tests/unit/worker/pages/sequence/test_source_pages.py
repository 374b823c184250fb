"""A sequence continues within another's page, on a copy of its own."""

import pytest
import torch

from engines.sequence_rig import LAYOUT, SLOTS, SequenceRig
from inference_worker.pages.acquisition import RESERVE_AHEAD
from inference_worker.pages.layout import PageRef
from inference_worker.pages.private_arena import PRIVATE_EXTENT
from inference_worker.pages.sequence import SequencePages
from kvstore_client import Client
from pages.stamped_pages import LIMIT

# Made-up best tokens, because the rig has no model.
BEST, BEST_OF_ALL = 77, 88


def run_whole(rig: SequenceRig, ids: list[int], prompt: int) -> list[PageRef]:
    """Runs a sequence to its end, like an engine. Returns the pages that it published."""
    with rig.open(ids[:prompt]) as pages:
        rig.compute(pages, ids, pages.matched_tokens + pages.copied_tokens, len(ids))
        return pages.finish(ids, len(ids), {prompt: BEST, len(ids): BEST_OF_ALL})


def pin_count(client: Client) -> int:
    """Counts the pins that are held after all releases have arrived."""
    assert client.flush(LIMIT)
    return client.admin.stats().pin_count


@pytest.mark.parametrize("shared", [4, 7, 9, 11])
def test_every_shared_token_is_reused(rig: SequenceRig, shared: int) -> None:
    """Whole pages are used in place, and the rest is copied to the sequence's own first page."""
    ids = list(range(100, 115))
    published = run_whole(rig, ids, 12)
    assert len(published) == 4
    other = [*ids[:shared], *range(500, 506)]
    with rig.open(other) as pages:
        whole, rest = divmod(shared, 4)
        assert pages.matched_pages == published[:whole]
        assert (pages.matched_tokens, pages.copied_tokens) == (4 * whole, rest)
        assert pages.source_page == (published[whole] if rest else None)
        rig.compute(pages, other, shared, len(other))
        assert pages.table[whole] not in published
        assert rig.holds(pages, other)
        assert len(pages.finish(other, len(other), {})) == LAYOUT.pages_for(len(other)) - whole
    with rig.open([*other, 9]) as pages:
        assert pages.matched_tokens + pages.copied_tokens == len(other)
        rig.compute(pages, [*other, 9], len(other), len(other) + 1)
        assert rig.holds(pages, [*other, 9])


@pytest.mark.parametrize("shared", [1, 3])
def test_few_tokens_of_a_first_page_are_computed(
    rig: SequenceRig, client: Client, shared: int
) -> None:
    """A sequence that shares few tokens of its first page starts as a miss."""
    ids = list(range(1000, 1015))
    run_whole(rig, ids, 12)
    other = [*ids[:shared], *range(500, 506)]
    with rig.open(other) as pages:
        assert pin_count(client) == 0
        assert (pages.matched_tokens, pages.copied_tokens, pages.source_page) == (0, 0, None)
        assert pages.failure is None
        rig.compute(pages, other, 0, len(other))
        assert rig.holds(pages, other)
        assert len(pages.finish(other, len(other), {})) == LAYOUT.pages_for(len(other))
    with rig.open([*other, 9]) as pages:
        assert pages.matched_tokens + pages.copied_tokens == len(other)


def test_a_partial_page_is_never_written_again(rig: SequenceRig, client: Client) -> None:
    """Two sequences continue from a partial page, each in a copy, and leave the page unchanged."""
    ids = list(range(200, 210))
    partial = run_whole(rig, ids, 8)[-1]
    watcher = SequenceRig(rig.namespace)
    with watcher.open(ids, accept_next_token=True) as holder:
        # It holds the page that it found until it computes something.
        assert holder.source_page == partial
        before = watcher.pool.page(partial).clone()
        for more in ([1, 2, 3], [4, 5, 6]):
            longer = [*ids, *more]
            with rig.open(longer) as pages:
                assert (pages.matched_tokens, pages.copied_tokens) == (8, 2)
                rig.compute(pages, longer, 10, len(longer))
                assert pages.table[2] != partial
                assert rig.holds(pages, longer)
                assert len(pages.finish(longer, len(longer), {})) == 2
        assert torch.equal(watcher.pool.page(partial), before)
    assert pin_count(client) == 0


def test_the_source_is_given_back_when_it_is_copied(rig: SequenceRig, client: Client) -> None:
    """A source's pin is released once something is computed, the matched pages' at the end."""
    ids = list(range(300, 311))
    run_whole(rig, ids, 8)
    with rig.open(ids) as pages:
        assert pages.copied_tokens == 2
        assert pin_count(client) == 2
        pages.ensure(len(ids))
        assert pin_count(client) == 1
        pages.ensure(len(ids) + 1)
        assert pin_count(client) == 1


def test_a_known_next_token_needs_no_page_of_its_own(rig: SequenceRig, client: Client) -> None:
    """The whole prompt is matched. Only a sequence that continues takes a slot and copies."""
    ids = list(range(400, 411))
    published = run_whole(rig, ids, 6)
    for end, best in ((6, BEST), (11, BEST_OF_ALL)):
        with rig.open(ids[:end], longest=end, accept_next_token=True) as pages:
            assert pages.next_token == best
            assert pages.matched_tokens + pages.copied_tokens == end
            assert rig.private.used_count == 0
        with rig.open(ids[:end], accept_next_token=True) as pages:
            longer = [*ids[:end], best]
            rig.compute(pages, longer, end, end + 1)
            assert rig.holds(pages, longer)
        with rig.open(ids[:end]) as sampling:
            assert sampling.next_token is None
            assert sampling.matched_tokens + sampling.copied_tokens == end - 1
    # There is no next token at a place where no request ended.
    with rig.open(ids[:9], accept_next_token=True) as pages:
        assert pages.next_token is None
        assert pages.matched_pages == published[:2]
    assert pin_count(client) == 0


def test_an_end_between_pages_needs_no_source(rig: SequenceRig) -> None:
    """A repeated prompt of whole pages uses all its pages in place, without a source."""
    ids = list(range(600, 608))
    published = run_whole(rig, ids, 8)
    with rig.open(ids, accept_next_token=True) as pages:
        assert (pages.matched_pages, pages.source_page) == (published, None)
        assert pages.next_token == BEST_OF_ALL
        assert rig.holds(pages, ids)


def test_a_full_store_is_copied_from_into_private_pages(rig: SequenceRig) -> None:
    """A source is copied to the private arena if the store has no free slot."""
    ids = list(range(700, 710))
    published = run_whole(rig, ids, 8)
    longer = [*ids, *range(1000, 1000 + 4 * SLOTS)]
    others = list(range(4 * (SLOTS - len(published) - RESERVE_AHEAD)))
    with SequenceRig(rig.namespace).open(others), rig.open(longer) as pages:
        assert (pages.matched_tokens, pages.copied_tokens) == (8, 2)
        rig.compute(pages, longer, 10, len(longer))
        assert {page.extent for page in list(pages.table)[2:]} == {PRIVATE_EXTENT}
        assert pages.source_page == published[2]
        assert rig.holds(pages, longer)
        assert pages.finish(longer, len(longer), {len(longer): BEST}) == []


def test_no_slot_is_reserved_beyond_the_end(rig: SequenceRig, client: Client) -> None:
    """A sequence reserves at most the slots that it can use, so one that just fits is stored."""

    def reserved() -> int:
        return sum(arena.reserved_slot_count for arena in client.admin.stats().arenas)

    ids = list(range(800, 800 + 4 * SLOTS))
    with rig.open(ids[:8], longest=12) as pages:
        assert reserved() == 3
        pages.ensure(12)
        assert reserved() == 3
    with rig.open(ids[:-4], longest=len(ids)) as pages:
        assert reserved() == SLOTS
        assert_published(rig, pages, ids)


def test_a_prompt_that_just_fits_is_stored(rig: SequenceRig) -> None:
    """Slots for a prompt are taken one by one if none can be reserved ahead."""
    ids = list(range(1800, 1800 + 4 * SLOTS))
    prompt = ids[: 4 * (SLOTS - RESERVE_AHEAD + 1)]
    with rig.open(prompt) as pages:
        assert len(pages.table) == SLOTS - RESERVE_AHEAD + 1
        assert_published(rig, pages, ids)


def assert_published(rig: SequenceRig, pages: SequencePages, ids: list[int]) -> None:
    """Computes a sequence that takes all slots, and checks that all are published."""
    rig.compute(pages, ids, 0, len(ids))
    assert rig.private.used_count == 0
    assert len(pages.finish(ids, len(ids), {len(ids): BEST})) == SLOTS


def test_what_was_finished_is_not_published_again(rig: SequenceRig) -> None:
    """A second finish of the same pages publishes no page."""
    ids = list(range(900, 910))
    with rig.open(ids) as pages:
        rig.compute(pages, ids, 0, 10)
        assert len(pages.publish(ids, 10)) == 2
        assert len(pages.finish(ids, 10, {10: BEST})) == 1
        assert pages.finish(ids, 10, {9: BEST_OF_ALL, 10: BEST_OF_ALL}) == []
    for end, best in ((9, BEST_OF_ALL), (10, BEST)):
        with rig.open(ids[:end], accept_next_token=True) as pages:
            assert pages.next_token == best
