"""A sequence in a store with too little room uses private pages for the rest."""

from engines.sequence_rig import SLOTS, SequenceRig, reserved_slots
from inference_worker.pages.acquisition import RESERVE_AHEAD
from inference_worker.pages.private_arena import PRIVATE_EXTENT
from kvstore_client import (
    Client,
)


def test_a_sequence_grows_in_the_store_and_then_beside_it(rig: SequenceRig, client: Client) -> None:
    """Slots are reserved ahead until none is free. The rest is private and not published."""
    ids = list(range(500, 500 + 4 * 40))
    with rig.open(ids[:4]) as pages:
        assert reserved_slots(client) == 1 + RESERVE_AHEAD
        published = []
        for end in range(4, len(ids) + 1, 4):
            rig.compute(pages, ids, end - 4, end)
            published += pages.publish(ids, end)
        extents = [page.extent == PRIVATE_EXTENT for page in pages.table]
        assert extents == sorted(extents)
        stored = extents.count(False)
        assert SLOTS - RESERVE_AHEAD <= stored <= SLOTS
        assert published == list(pages.table)[:stored]
        assert rig.private.used_count == 40 - stored
        assert rig.holds(pages, ids)
    with rig.open(ids) as again:
        assert again.matched_tokens == 4 * stored


def test_room_that_comes_later_is_not_used(rig: SequenceRig, client: Client) -> None:
    """All pages after a private page are private. The store takes no page without its path."""
    ids = list(range(900, 900 + 4 * 24))
    other = SequenceRig(rig.namespace)
    with rig.open(ids[:4]) as pages:
        room = SLOTS - 1 - RESERVE_AHEAD
        with other.open(list(range(4 * (room - RESERVE_AHEAD)))):
            assert reserved_slots(client) == SLOTS
            rig.compute(pages, ids, 0, 24)
            assert rig.private.used_count == 1
        rig.compute(pages, ids, 24, len(ids))
        assert pages.publish(ids, len(ids)) == list(pages.table)[: 1 + RESERVE_AHEAD]
        assert pages.publish(ids, len(ids)) == []
        assert rig.holds(pages, ids)
    with rig.open(ids) as again:
        assert again.matched_tokens == 4 * (1 + RESERVE_AHEAD)
        assert rig.holds(again, ids[: again.matched_tokens])


def test_a_prompt_longer_than_the_store_is_cached_in_part(rig: SequenceRig, client: Client) -> None:
    """A prompt's first pages are stored, as many as halving allows, with no further requests."""
    ids = list(range(3000, 3000 + 4 * (SLOTS + 8)))
    half = (SLOTS + 8) // 2
    with rig.open(ids) as pages:
        assert pages.failure is None
        assert len(pages.table) == reserved_slots(client) == half
        for end in range(4, len(ids) + 1, 4):
            rig.compute(pages, ids, end - 4, end)
        assert reserved_slots(client) == half
        assert {page.extent for page in list(pages.table)[half:]} == {PRIVATE_EXTENT}
        assert pages.publish(ids, len(ids)) == list(pages.table)[:half]
        assert pages.finish(ids, len(ids), {len(ids): 1}) == []
        assert rig.holds(pages, ids)
    with rig.open(ids) as again:
        assert again.matched_tokens == 4 * half
        assert rig.holds(again, ids[: again.matched_tokens])
        # Only half as many pages are missing now, and half of these fit.
        assert reserved_slots(client) == half // 2


def test_the_last_slot_is_taken(rig: SequenceRig, client: Client) -> None:
    """Halving goes down to one page, which takes the copy of the source."""
    ids = list(range(4000, 4010))
    other = SequenceRig(rig.namespace)
    with rig.open(ids) as first:
        rig.compute(first, ids, 0, 10)
        assert len(first.finish(ids, 10, {10: 1})) == 3
    room = SLOTS - 3
    with other.open(list(range(4 * (room - 1 - RESERVE_AHEAD)))):
        assert reserved_slots(client) == room - 1
        longer = [*ids, *range(5000, 5030)]
        with rig.open(longer) as pages:
            assert (pages.matched_tokens, pages.copied_tokens) == (8, 2)
            assert reserved_slots(client) == room
            rig.compute(pages, longer, 10, len(longer))
            assert rig.private.used_count == len(pages.table) - 3
            assert pages.publish(longer, len(longer)) == [pages.table[2]]
            assert rig.holds(pages, longer)


def test_a_store_that_is_full_gives_its_match(rig: SequenceRig) -> None:
    """Matched pages are used even if no slot is free. The rest is private."""
    ids = list(range(700, 717))
    published = rig.publish_all(ids)
    other = SequenceRig(rig.namespace)
    longer = [*ids, *range(1000, 1000 + 4 * SLOTS)]
    with (
        other.open(list(range(4 * (SLOTS - len(published) - RESERVE_AHEAD)))),
        rig.open(longer) as pages,
    ):
        assert pages.failure is None
        assert pages.matched_pages == published
        rig.compute(pages, longer, 16, len(longer))
        assert {page.extent for page in list(pages.table)[4:]} == {PRIVATE_EXTENT}
        assert pages.publish(longer, len(longer)) == []
        assert rig.holds(pages, longer)
