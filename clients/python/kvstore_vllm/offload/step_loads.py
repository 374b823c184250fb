"""Loads within a step, which vLLM's own connector does not have: it loads beside steps only."""

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from typing import NamedTuple

from vllm.distributed.kv_transfer.kv_connector.v1.offloading.scheduler import (
    OffloadingConnectorScheduler,
)
from vllm.v1.core.kv_cache_manager import KVCacheBlocks


class _Block(NamedTuple):
    """A block of vLLM's, as if its prefix cache did not have it."""

    block_id: int
    is_null: bool
    block_hash: None = None


def unhashed(blocks: KVCacheBlocks) -> KVCacheBlocks:
    """Returns a request's blocks as if vLLM's prefix cache had none of them.

    vLLM's connector loads a request's new blocks from the first one without a hash on. A request
    that loads beside steps gets hashes after its load, and one that loads in its step before.
    """
    groups = ([_Block(each.block_id, each.is_null) for each in group] for group in blocks.blocks)
    return KVCacheBlocks(tuple(groups))


@contextmanager
def hidden_loads(scheduler: OffloadingConnectorScheduler) -> Iterator[None]:
    """Hides loads under way from vLLM's scheduler while it plans the stores of a step.

    It asserts that no request is scheduled, stored or preempted while it loads. A load within a
    step ends before its request's first block is computed, so all three are safe.
    """
    statuses = {
        number: scheduler._req_status[job.req_id]  # noqa: SLF001  # there is no other way
        for number, job in scheduler._jobs.items()  # noqa: SLF001
        if not job.is_store
    }
    for number, status in statuses.items():
        status.transfer_jobs.remove(number)
    try:
        yield
    finally:
        for number, status in statuses.items():
            status.transfer_jobs.add(number)
            # It forgets an ended request that has nothing under way, but the load will end.
            scheduler._req_status.setdefault(status.req.request_id, status)  # noqa: SLF001


def dependent_blocks(
    scheduler: OffloadingConnectorScheduler, block_ids: AbstractSet[int]
) -> set[int]:
    """Returns blocks, and those after them of any request, which may be computed on them.

    vLLM's prefix cache must not have them, since it computes only those of running requests again.
    """
    found = set(block_ids)
    for status in scheduler._req_status.values():  # noqa: SLF001
        [group] = status.group_states
        first = next((n for n, each in enumerate(group.block_ids) if each in block_ids), None)
        if first is not None:
            found.update(group.block_ids[first:])
    return found
