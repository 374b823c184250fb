"""The page tables of a vLLM engine's processes for the store's memory."""

import pytest

from kvstore_client import Acquired, Client
from kvstore_client.engines.store_access import StoreAccess
from kvstore_client.testing import RunningStore, wait_until
from kvstore_client.values.page_runs import Pages
from kvstore_vllm.blocks.engine_layout import layout_of
from kvstore_vllm.identity.request_key import RequestKey
from kvstore_vllm.scheduler.step_operations import AcquirePages, InsertPages
from kvstore_vllm.scheduler.store_work import StoreWork
from kvstore_vllm.step_plan import BlockTransfer
from processes.resident_bytes import mapped_memfds, resident_bytes
from processes.worker_process import WorkerProcess
from vllm_rig.rank_process import (
    BLOCKS,
    IDENTITY,
    LAYOUT,
    LIMIT,
    PAGE_BYTES,
    PAGE_TOKENS,
    rank_worker,
)

pytestmark = pytest.mark.store("--tier1-bytes", "8MiB", "--extent-bytes", "4MiB")

NAME, EXTENT = "kvstore-extent", 4 << 20
KEY = RequestKey()
# The kernel also maps up to 64 KiB around.
SAVED = range(BLOCKS * PAGE_BYTES, BLOCKS * PAGE_BYTES + (1 << 20))


def pages_of(acquired: Acquired) -> Pages:
    """Returns the reserved pages."""
    return acquired.reservation.pages if acquired.reservation else Pages()


def acquire_whole(work: StoreWork, tokens: list[int]) -> Acquired:
    """Reserves slots for a prompt, once the store has grown by an extent that both have mapped."""
    found: list[Acquired] = []

    def acquired() -> bool:
        [each] = work.run_step([AcquirePages(KEY, tokens, False, lambda _: None)])  # noqa: FBT003
        assert isinstance(each, Acquired)
        if len(pages_of(each)) == BLOCKS:
            found.append(each)
        else:
            each.release()
        return bool(found)

    assert wait_until(acquired)
    return found[0]


def test_a_new_extent_is_not_filled_while_a_prompt_is_computed(store: RunningStore) -> None:
    """A scheduler fills no page tables, and a rank only those of slots that it writes."""
    others = mapped_memfds(NAME)
    folder, layout = str(store.runtime_dir), layout_of(LAYOUT)
    access = StoreAccess(folder, IDENTITY, layout, name="vllm tiny", call_timeout=LIMIT)
    work = StoreWork(access, PAGE_TOKENS, LIMIT)
    assert wait_until(lambda: access.usable and access.memory.failure is None)
    with WorkerProcess("rank", rank_worker, folder) as rank:
        assert rank.ask("join", access.share_lease())
        # A prompt of more pages than an extent has, so the store grows.
        tokens = list(range(BLOCKS * PAGE_TOKENS))
        acquired = acquire_whole(work, tokens)
        runs = tuple(pages_of(acquired).dated_runs)
        assert len({run.extent_id for run in runs}) == 2
        # Another client of this process attaches later, and fills all of its own page tables.
        with Client(folder) as other:
            assert other.namespace(IDENTITY, layout).wait_open(LIMIT)
            assert wait_until(lambda: resident_bytes(NAME, others) == 2 * EXTENT)
            assert rank.ask("resident") == 0
        assert wait_until(lambda: resident_bytes(NAME, others) == 0)
        assert rank.ask("save", BlockTransfer(1, "request", tuple(range(BLOCKS)), runs))
        assert rank.ask("resident") in SAVED
        assert resident_bytes(NAME, others) == 0
        # The scheduler reads the saved pages for their checksums, and nothing else.
        insert = InsertPages(KEY, tokens, acquired, 0, BLOCKS, None, lambda _: None)
        assert work.run_step([insert]) == [True]
        assert resident_bytes(NAME, others) in SAVED
        acquired.release()
        access.close()
