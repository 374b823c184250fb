"""Loads within a step, in vLLM's own scheduler of its connector, which expects none."""

from types import SimpleNamespace
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.offloading.scheduler import (
    OffloadingConnectorScheduler,
)
from vllm.v1.core.kv_cache_manager import KVCacheBlocks
from vllm.v1.core.kv_cache_utils import KVCacheBlock

from kvstore_vllm.offload.step_loads import dependent_blocks, hidden_loads, unhashed


def scheduler(**blocks: list[int]) -> Any:  # noqa: ANN401  # vLLM's, without its constructor
    """Returns a scheduler of requests with these blocks, each of which loads and stores."""
    made = object.__new__(OffloadingConnectorScheduler)
    made._jobs = {}
    made._req_status = {}
    for number, (name, ids) in enumerate(blocks.items()):
        load, store = 2 * number, 2 * number + 1
        for job, is_store in ((load, False), (store, True)):
            made._jobs[job] = SimpleNamespace(req_id=name, is_store=is_store)
        made._req_status[name] = SimpleNamespace(
            req=SimpleNamespace(request_id=name),
            transfer_jobs={load, store},
            group_states=(SimpleNamespace(block_ids=ids),),
        )
    return made


def test_a_request_loads_its_blocks_although_the_prefix_cache_has_them() -> None:
    """Without that, vLLM's connector loads blocks from the first one without a hash on."""
    cached, empty = KVCacheBlock(5), KVCacheBlock(0, is_null=True)
    cached._block_hash = b"a hash"  # type: ignore[assignment]
    [group] = unhashed(KVCacheBlocks(([cached, empty],))).blocks
    assert [(each.block_id, each.is_null) for each in group] == [(5, False), (0, True)]
    assert [each.block_hash for each in group] == [None, None]
    assert cached.block_hash is not None


def test_loads_are_hidden_while_stores_are_planned() -> None:
    """A request that ends meanwhile is remembered until its load ended."""
    found = scheduler(running=[1], ended=[2])
    ended = found._req_status["ended"]
    with hidden_loads(found):
        assert [each.transfer_jobs for each in found._req_status.values()] == [{1}, {3}]
        # As vLLM does with an ended request.
        ended.transfer_jobs.clear()
        del found._req_status["ended"]
    assert found._req_status["running"].transfer_jobs == {0, 1}
    assert found._req_status["ended"] is ended
    assert ended.transfer_jobs == {2}


def test_blocks_after_a_failed_one_may_be_wrong() -> None:
    """They are computed on it, whoever computed them; those before it are not."""
    found = scheduler(one=[1, 2, 3], other=[1, 2, 4], apart=[6, 7])
    assert dependent_blocks(found, {2, 9}) == {2, 3, 4, 9}
