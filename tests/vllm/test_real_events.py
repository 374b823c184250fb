"""Events of the store's pages through vLLM's own types."""

import pytest
from rig.events import events_of, make_request
from vllm.distributed.kv_events import BlockRemoved, BlockStored
from vllm.v1.core.kv_cache_utils import maybe_convert_block_hash

from kvstore_client.engines import page_checks
from kvstore_client.testing import wait_until
from kvstore_client.values.packed_tokens import pack_tokens
from kvstore_vllm.identity.request_key import RequestKey
from kvstore_vllm.store_events import BlockSizes

PAGE = 16
PLAIN = BlockSizes(PAGE, PAGE, PAGE)
KEY = RequestKey()


def test_pages_are_told_as_vllm_tells_of_its_own() -> None:
    """Hashes, the one before them, tokens and extra keys of those that were not told yet."""
    request, events = make_request(PAGE, 3 * PAGE + 1, "salt"), events_of(PLAIN, enabled=True)
    events.has(request, KEY, 1)
    events.has(request, KEY, 1)
    events.has(request, KEY, 9)
    assert events.are_waiting
    first, second = events.take()
    assert isinstance(first, BlockStored)
    assert isinstance(second, BlockStored)
    hashes = [maybe_convert_block_hash(each) for each in request.block_hashes]
    assert (first.block_hashes, first.parent_block_hash) == (hashes[:1], None)
    assert (second.block_hashes, second.parent_block_hash) == (hashes[1:], hashes[0])
    assert list(second.token_ids) == list(range(PAGE, 3 * PAGE))
    assert {(each.medium, each.locality, each.block_size) for each in (first, second)} == {
        ("CPU", "LOCAL", PAGE)
    }
    assert (first.extra_keys, second.extra_keys) == ([("salt",)], [None, None])
    assert (first.group_idx, first.kv_cache_spec_kind) == (0, "full_attention")
    assert events.take() == []
    assert not events.are_waiting


def test_pages_that_a_lookup_misses_are_withdrawn() -> None:
    """The last ones first, once; what is not told is not withdrawn either."""
    request, events = make_request(PAGE, 3 * PAGE + 1), events_of(PLAIN, enabled=True)
    events.lacks(request, KEY, 0)
    events.has(request, KEY, 3)
    hashes = events.take()[0].block_hashes
    events.lacks(request, KEY, 1)
    events.lacks(request, KEY, 1)
    [gone] = events.take()
    assert isinstance(gone, BlockRemoved)
    assert (gone.block_hashes, gone.medium) == ([hashes[2], hashes[1]], "CPU")
    events.lacks(request, KEY, 3)
    assert events.take() == []
    events.clear()
    assert [each.block_hashes for each in events.take()] == [hashes[:1]]


@pytest.mark.parametrize(
    ("sizes", "names"),
    [
        # Pages of two blocks, and blocks of two hashes.
        (BlockSizes(PAGE, PAGE, 2 * PAGE), [0, 1, 2, 3]),
        (BlockSizes(PAGE, 2 * PAGE, 2 * PAGE), [1, 3]),
    ],
)
def test_a_page_has_the_hashes_of_its_blocks(sizes: BlockSizes, names: list[int]) -> None:
    """A page goes with all of them."""
    request, events = make_request(PAGE, 5 * PAGE + 1), events_of(sizes, enabled=True)
    hashes = [maybe_convert_block_hash(each) for each in request.block_hashes]
    events.has(request, KEY, 9)
    [stored] = events.take()
    assert stored.block_hashes == [hashes[each] for each in names]
    assert len(stored.token_ids) == 4 * PAGE == len(names) * stored.block_size
    events.lacks(request, KEY, 1)
    [gone] = events.take()
    assert gone.block_hashes == stored.block_hashes[len(names) // 2 :]


@pytest.mark.parametrize("enabled", [None, False])
def test_nothing_is_told_where_nobody_listens(*, enabled: bool | None) -> None:
    """Without vLLM's events there are none of these, and no thread."""
    events = events_of(PLAIN, enabled=enabled)
    events.check_with(lambda *_: 0, lambda: True)
    events.has(make_request(PAGE, 3 * PAGE), KEY, 1)
    events.lacks(make_request(PAGE, 3 * PAGE), KEY, 0)
    assert events.take() == []
    events.close()


def test_an_error_reaches_nobody(caplog: pytest.LogCaptureFixture) -> None:
    """A token that is no uint32 is in no page either; the next request is announced."""
    events = events_of(PLAIN, enabled=True)
    broken = make_request(PAGE, 2 * PAGE)
    broken._all_token_ids[3] = -1
    events.has(broken, KEY, 1)
    assert "pages_not_announced" in caplog.text
    assert events.take() == []
    events.has(make_request(PAGE, 2 * PAGE), KEY, 1)
    assert len(events.take()) == 1


def test_hashes_that_end_within_blocks_are_not_told() -> None:
    """They name other tokens."""
    events = events_of(BlockSizes(2 * PAGE, PAGE, PAGE), enabled=True)
    events.has(make_request(2 * PAGE, 4 * PAGE), KEY, 1)
    assert events.take() == []


def test_pages_that_left_the_store_are_withdrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread asks for the path with the tokens of its lookup."""
    monkeypatch.setattr(page_checks, "ROUND_SECONDS", 0.001)
    request, events = make_request(PAGE, 3 * PAGE + 1), events_of(PLAIN, enabled=True)
    asked: list[tuple[RequestKey, bytes]] = []

    def cached_pages(key: RequestKey, tokens: bytes) -> int:
        asked.append((key, tokens))
        return 2

    events.has(request, KEY, 3)
    [stored] = events.take()
    events.check_with(cached_pages, lambda: True)
    assert wait_until(lambda: events.are_waiting)
    events.close()
    [gone] = events.take()
    assert gone.block_hashes == stored.block_hashes[2:]
    assert asked[0] == (KEY, pack_tokens(list(range(3 * PAGE))))
