"""The copies of SGLang's linker on CUDA tensors, without SGLang."""

from collections.abc import Iterator

import pytest
import torch

from kvstore_client.testing import RunningStore
from sglang_rig.pools import page_of, wipe
from sglang_rig.rank import PAGES, PlainRank, rank_of, tokens_of

pytestmark = pytest.mark.store("--tier1-bytes", "48KiB", "--extent-bytes", "48KiB")


@pytest.fixture
def rank(fresh_store: RunningStore) -> Iterator[PlainRank]:
    """Provides a rank whose pool is on a GPU, and whose extents are registered there."""
    made = rank_of(fresh_store.runtime_dir, device=0)
    yield made
    made.close()


def test_pages_of_a_gpu_go_through_the_store(rank: PlainRank) -> None:
    """Saved pages land in other pages of the pool as they were, in every layer."""
    before = [page_of(rank.pool, number) for number in range(PAGES)]
    tokens, numbers, targets = tokens_of(0, 4), [2, 3, 9, 1], [0, 4, 5, 12]
    rank.save(tokens, numbers)
    assert rank.saved()
    wipe(rank.pool)
    assert rank.find(tokens) == 4
    assert rank.load(0, targets)
    for target, number in zip(targets, numbers, strict=True):
        assert torch.equal(page_of(rank.pool, target), before[number])
    untouched = set(range(PAGES)) - set(targets)
    assert not any(page_of(rank.pool, number).any() for number in untouched)


def test_a_save_reads_what_the_device_had_written_before(rank: PlainRank) -> None:
    """Pages are copied after the work that computes them, however long that takes."""
    tokens = tokens_of(0, 2)
    torch.cuda._sleep(200_000_000)
    for tensor in (*rank.pool.k_buffer, *rank.pool.v_buffer):
        tensor.fill_(7)
    computed = torch.cuda.Event()
    computed.record()
    rank.save(tokens, [3, 4], events=[computed])
    assert rank.saved()
    wipe(rank.pool)
    torch.cuda.synchronize()
    assert rank.find(tokens) == 2
    assert rank.load(0, [6, 7])
    assert (page_of(rank.pool, 6) == 7).all()
