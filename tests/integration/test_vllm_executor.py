"""Pages of vLLM's blocks through a real store, without vLLM."""

from collections.abc import Callable

import pytest

from kvstore_client.testing import RunningStore
from pages.stamped_pages import SMALL_STORE
from vllm_rig.block_layouts import LAYOUTS, Layout
from vllm_rig.executor_copies import pages_go_through_a_store
from vllm_rig.step_queues import CpuQueue, StandInQueue, StepQueue

pytestmark = pytest.mark.store(*SMALL_STORE)


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("queue", [CpuQueue, StandInQueue], ids=["cpu", "stand-in"])
def test_saved_pages_are_loaded(
    layout: Layout, queue: Callable[[], StepQueue], fresh_store: RunningStore
) -> None:
    """Blocks that were saved come back from the store's memory, in every layout."""
    pages_go_through_a_store(layout, queue(), str(fresh_store.runtime_dir), None)
