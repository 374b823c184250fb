"""A sequence's pages come from the store as long as it has room, and all are given back."""

from dataclasses import replace

import pytest

from engines.sequence_rig import LAYOUT, LONGEST, POOL_BYTES, STORED, SequenceRig, reserved_slots
from inference_worker.errors import ArenaExhaustedError, LayoutMismatchError
from inference_worker.pages.acquisition import RESERVE_AHEAD
from inference_worker.pages.pool import PagePool
from inference_worker.pages.private_arena import PRIVATE_EXTENT, PrivateArena
from inference_worker.pages.sequence import SequencePages
from kvstore_client import (
    Client,
    ClientConfig,
    NamespaceIdentity,
    connect_admin,
)
from kvstore_client.errors import StoreUnavailable
from kvstore_client.testing import running_store, wait_until
from pages.stamped_pages import LIMIT, nothing_held


def test_without_a_namespace_all_pages_are_private() -> None:
    """Without a namespace nothing is matched or published, and the slots are given back once."""
    rig = SequenceRig(None)
    ids = list(range(10, 31))
    with rig.open(ids) as pages:
        assert (pages.matched_tokens, pages.matched_pages, pages.failure) == (0, [], None)
        rig.compute(pages, ids, 0, len(ids))
        assert {page.extent for page in pages.table} == {PRIVATE_EXTENT}
        assert rig.private.used_count == len(pages.table) == 6
        assert pages.publish(ids, len(ids)) == []
        assert rig.holds(pages, ids)
    assert rig.private.used_count == 0
    pages.close()


def test_whole_pages_are_published_as_they_are_computed(rig: SequenceRig, client: Client) -> None:
    """Each publish inserts the pages that became whole; a partial page stays invisible."""
    ids = list(range(100, 119))
    with rig.open(ids) as pages:
        assert pages.matched_tokens == 0
        assert len(pages.table) == reserved_slots(client) == 5 + RESERVE_AHEAD
        own = list(pages.table)
        rig.compute(pages, ids, 0, 9)
        assert pages.publish(ids, 9) == own[:2]
        rig.compute(pages, ids, 9, 11)
        assert pages.publish(ids, 11) == []
        rig.compute(pages, ids, 11, 19)
        assert pages.publish(ids, 19) == own[2:4]
        assert list(pages.table) == own
        assert reserved_slots(client) == 1 + RESERVE_AHEAD
    assert rig.namespace is not None
    assert rig.namespace.peek([*ids, 0, 0]) == 16


def test_matched_pages_are_used_in_place(rig: SequenceRig) -> None:
    """A sequence with the same prefix uses the first one's pages, and computes only the rest."""
    ids = list(range(200, 219))
    published = rig.publish_all(ids)
    longer = [*ids[:17], *range(50, 60)]
    with rig.open(longer) as pages:
        assert pages.matched_pages == published == list(pages.table)[:4]
        assert pages.matched_tokens == 16
        rig.compute(pages, longer, 16, len(longer))
        assert rig.holds(pages, longer)
        assert pages.publish(longer, len(longer)) == list(pages.table)[4:6]
    with rig.open(longer) as pages:
        assert pages.matched_tokens == 24
        assert rig.holds(pages, longer[:24])


def test_a_match_leaves_a_token_to_compute(rig: SequenceRig) -> None:
    """All pages but the last are matched if a sequence is cached whole."""
    ids = list(range(300, 316))
    published = rig.publish_all(ids)
    assert len(published) == 4
    with rig.open(ids) as pages:
        assert pages.matched_pages == published[:3]
        rig.compute(pages, ids, 12, 16)
        # The page is already published, so this copy stays the sequence's own.
        assert pages.publish(ids, 16) == []
        assert rig.holds(pages, ids)


def test_the_first_of_two_writers_stays(rig: SequenceRig) -> None:
    """The page that was published first stays, and the other writer's later pages follow."""
    ids = list(range(400, 421))
    other = SequenceRig(rig.namespace)
    with rig.open(ids) as late, other.open(ids[:13]) as early:
        other.compute(early, ids[:13], 0, 13)
        first = early.publish(ids[:13], 13)
        own = list(late.table)
        rig.compute(late, ids, 0, 21)
        assert late.publish(ids, 21) == own[3:5]
        assert list(late.table) == own
        assert rig.holds(late, ids)
    with rig.open(ids) as pages:
        assert pages.matched_pages == [*first, *own[3:5]]
        assert rig.holds(pages, ids[:20])


def test_pages_behind_a_removed_path_are_not_published(rig: SequenceRig, client: Client) -> None:
    """A sequence still reads a matched path that was evicted, and publishes nothing after it."""
    ids = list(range(800, 817))
    rig.publish_all(ids)
    longer = [*ids, *range(900, 920)]
    assert rig.namespace is not None
    (here,) = (
        each
        for each in client.admin.namespaces()
        if each.identity.model_digest == rig.namespace.identity.model_digest
    )
    with rig.open(longer) as pages:
        client.admin.evict_prefix(here.namespace_id, ids[:4])
        rig.compute(pages, longer, 16, 30)
        assert pages.publish(longer, 30) == []
        rig.compute(pages, longer, 30, len(longer))
        assert pages.publish(longer, len(longer)) == []
        assert rig.holds(pages, longer)
    assert rig.namespace.peek([*longer, 0]) == 0


def test_an_exception_gives_everything_back(rig: SequenceRig) -> None:
    """Pins, reserved slots and private slots are given back also if the sequence fails."""
    ids = list(range(600, 617))
    rig.publish_all(ids)
    longer = [*ids, *range(2000, 2000 + 4 * 40)]

    def overrun() -> None:
        with rig.open(longer) as pages:
            rig.compute(pages, longer, 16, len(longer))
            pages.ensure(10 * LONGEST)

    with pytest.raises(ArenaExhaustedError):
        overrun()


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_memory_that_does_not_fit_is_a_miss(rig: SequenceRig, client: Client, device: str) -> None:
    """Memory of another shape or device is a miss: no holds, and all pages private."""
    rig.publish_all(list(range(20)))
    head_dim = 4 if device == "cpu" else LAYOUT.head_dim
    layout = replace(LAYOUT, head_dim=head_dim)
    pool, private = PagePool(layout, device), PrivateArena(layout, 100, device)
    pool.add_extent(PRIVATE_EXTENT, private.tensor)
    ids = list(range(20))
    with SequencePages(pool, private, rig.namespace, ids, longest=30) as pages:
        assert isinstance(pages.failure, LayoutMismatchError)
        assert (pages.matched_tokens, pages.copied_tokens, pages.next_token) == (0, 0, None)
        assert pool.extents == {PRIVATE_EXTENT}
        assert client.flush(LIMIT)
        assert nothing_held(client)
        pages.ensure(20)
        assert {page.extent for page in pages.table} == {PRIVATE_EXTENT}
        assert pages.publish(ids, 20) == pages.finish(ids, 20, {20: 1}) == []
    assert private.used_count == 0


def test_tokens_that_are_none_are_the_callers_mistake(rig: SequenceRig) -> None:
    """Ids that the wire cannot carry raise before anything is held."""
    with pytest.raises(ValueError, match="token ids"):
        rig.open([1, 2, -3])


def test_an_absent_store_leaves_the_private_arena() -> None:
    """Without a store a sequence has a failure and private pages."""
    with running_store(start=False) as absent, Client(absent.runtime_dir) as client:
        rig = SequenceRig(client.namespace(NamespaceIdentity(b"absent"), STORED))
        with rig.open([1, 2, 3, 4, 5]) as pages:
            assert isinstance(pages.failure, StoreUnavailable)
            rig.compute(pages, [1, 2, 3, 4, 5], 0, 5)
            assert pages.publish([1, 2, 3, 4, 5], 5) == []
            assert rig.private.used_count == 2
        assert rig.private.used_count == 0


def test_a_store_that_dies_under_a_sequence_is_no_failure() -> None:
    """A dead store's pages stay usable to the end, new ones are private, and nothing stays held."""
    with running_store("--tier1-bytes", POOL_BYTES, "--extent-bytes", POOL_BYTES) as dying:
        with Client(dying.runtime_dir, ClientConfig(call_timeout=LIMIT)) as client:
            namespace = client.namespace(NamespaceIdentity(b"dying"), STORED)
            assert namespace.wait_open(LIMIT), namespace.failure
            rig = SequenceRig(namespace)
            ids = list(range(100))
            rig.publish_all(ids[:17])
            with rig.open(ids[:30]) as pages:
                assert pages.matched_tokens == 16
                dying.kill()
                rig.compute(pages, ids, 16, 30)
                assert pages.publish(ids, 30) == []
                rig.compute(pages, ids, 30, 100)
                assert rig.holds(pages, ids)
                assert rig.private.used_count == 25 - 8 - RESERVE_AHEAD
                assert pages.publish(ids, 100) == []
            assert wait_until(lambda: namespace.failure is not None), "its end is not noticed"
            dying.restart()
            assert namespace.wait_open(LIMIT), namespace.failure
            assert len(rig.publish_all(ids[:17])) == 4
            assert client.flush(LIMIT)
        with connect_admin(dying.runtime_dir) as admin:
            assert admin.stats().pin_count == 0
