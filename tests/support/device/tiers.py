"""Pages between a device's memory and tier 2: real stores, real processes.

As in ``device_scenarios``, ``torch_device`` is what torch calls the device there.
"""

from functools import partial

from device.pages import LAYOUT, SLOTS, page_count, prompt
from device.scenarios import LIMIT, stats, store_and_workers
from kvstore_client.testing import RunningStore, wait_until


def pages_go_down_and_come_back(torch_device: str) -> None:
    """Pages that tier 1 has no room for come back from tier 2 onto the device, with their bytes."""
    working_set = [prompt(number) for number in range(10, 10 + SLOTS)]
    pages = sum(map(page_count, working_set))
    settings = ("--tier2-bytes", str(2 * pages * LAYOUT.page_bytes), "--tier2-match", "promote")
    settings = (*settings, "--tier2-write", "through", "--verify-rate", "1")
    with store_and_workers(2, *settings) as (store, (writer, reader)):
        for number, tokens in enumerate(working_set):
            writer.ask("write", tokens)
            if number % 8 == 7:
                # Who is faster than the mover evicts what has no copy yet.
                written = sum(map(page_count, working_set[: number + 1]))
                assert wait_until(partial(_has_demoted, store, written), LIMIT)
        for tokens in working_set:
            assert reader.ask("hold", tokens) == len(tokens) - 1
            assert (reader.ask("reads_right"), reader.ask("device_type")) == (True, torch_device)
            reader.ask("release")
        counters = stats(store).counters
        assert counters.promoted_page_count >= pages // 2
        assert (counters.evicted_page_count, counters.corrupt_page_count) == (0, 0)
        assert "host_memory_not_registered" not in store.log
        assert "move_failed" not in store.log


def _has_demoted(store: RunningStore, page_count: int) -> bool:
    return stats(store).counters.demoted_page_count >= page_count
