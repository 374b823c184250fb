"""Orders of operations on a device: real stores, real processes.

``torch_device`` is as in ``device_scenarios``.
"""

from typing import Any

from device.pages import LAYOUT, SLOTS, prompt
from device.scenarios import LIMIT, OTHERS, TOKENS, stats, store_and_workers, store_of_tenants
from kvstore_client.testing import wait_until


def an_insert_waits_for_its_own_stream(torch_device: str) -> None:
    """Pages written by a side stream are whole in another process's side stream.

    The insert returns while another stream of the writer still works.
    """
    with store_and_workers(2, config={"waits_for_stream": True}) as (_, (writer, reader)):
        assert writer.ask("insert_beside_busy_stream", TOKENS)
        assert reader.ask("hold", TOKENS) == len(TOKENS) - 1
        assert reader.ask("reads_right_by_stream")
        assert reader.ask("device_type") == torch_device
        writer.ask("give_up")
        reader.ask("release")


def a_page_written_over_is_handed_to_nobody(torch_device: str) -> None:
    """The store reads the device's pages with checksums, and finds one that was overwritten."""
    config = {"page_checksums": True}
    with store_and_workers(2, "--verify-rate", "1", config=config) as (store, (one, two)):
        one.ask("write", TOKENS)
        assert two.ask("hold", TOKENS) == len(TOKENS) - 1
        assert (two.ask("reads_right"), two.ask("device_type")) == (True, torch_device)
        two.ask("overwrite", 5)
        two.ask("release")
        assert stats(store).counters.corrupt_page_count == 0
        # The index has lost page 5 and the pages after it; the pages before it are unchanged.
        assert two.ask("hold", TOKENS) == 5 * LAYOUT.page_tokens
        assert two.ask("reads_right")
        two.ask("release")
        assert stats(store).counters.corrupt_page_count == 1
        assert "page_corrupt" in store.log


def memory_is_freed_after_its_last_view(torch_device: str) -> None:
    """The store frees no extent that a worker still maps, and frees it once it does not."""
    with store_of_tenants() as (store, worker):
        giver = worker(5001)
        assert giver.ask("wait_open")
        sequences = [prompt(number) for number in range(10, 10 + SLOTS // 4 + 4)]
        for tokens in sequences:
            giver.ask("write", tokens)
        assert giver.ask("wait_opened", 2)
        written = [page for tokens in sequences for page in giver.ask("write", tokens)]
        kept = {page.extent_id: page for page in written}
        assert len(kept) == 2
        giver.ask("keep_views", [*kept.values()])
        seen = giver.ask("view_sums")
        asker = worker(5002)
        assert wait_until(lambda: "extent_still_mapped" in store.log, LIMIT)
        assert "extent_destroyed" not in store.log
        assert (giver.ask("opened"), giver.ask("view_sums")) == (2, seen)
        giver.ask("drop_views")
        assert asker.ask("wait_open")
        assert "extent_destroyed" in store.log
        assert giver.ask("opened") == 1
        asker.ask("write", OTHERS)
        assert asker.ask("hold", OTHERS) == len(OTHERS) - 1
        assert (asker.ask("reads_right"), asker.ask("device_type")) == (True, torch_device)
        asker.ask("release")


ORDERS: list[Any] = [
    an_insert_waits_for_its_own_stream,
    a_page_written_over_is_handed_to_nobody,
    memory_is_freed_after_its_last_view,
]
