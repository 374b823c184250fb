"""Stores with large pages, or with memory filled in steps, and a real client."""

from pathlib import Path

import pytest

from kvstore.storage.host.hugepages import HUGEPAGE_BYTES, available_bytes
from kvstore_client import Client, PagedContent, PageLayout, PageRef
from kvstore_client.testing import running_store, wait_until
from pages.stamped_pages import (
    IDENTITY,
    LAYOUT,
    LIMIT,
    TOKENS,
    holds_tokens,
    open_client,
    write_and_insert,
)
from processes.hugepage_pool import hugepages_reserved

# Two extents of one page each; the slots do not fill an extent.
EXTENTS = 2
STORE = (
    *("--hugepages", "2MiB", "--tier1-bytes", str(EXTENTS * HUGEPAGE_BYTES)),
    *("--extent-bytes", str(HUGEPAGE_BYTES - 1), "--verify-rate", "1"),
)


def page_sizes() -> dict[str, str]:
    """Returns the kernel page size, in KiB, of each extent that this process has mapped."""
    sizes, inside = dict[str, str](), ""
    for line in Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines():
        first = line.split(" ")[0]
        if "-" in first:
            inside = first if "memfd:kvstore-extent" in line else ""
        elif inside and line.startswith("MMUPageSize:"):
            sizes[inside] = line.split()[1]
    return sizes


def test_a_store_of_large_pages_serves_a_client() -> None:
    """A client maps and unmaps 2 MiB pages, or the store's log says how many to reserve."""
    with hugepages_reserved(EXTENTS) as had:
        before = available_bytes()
        with running_store(*STORE) as store:
            if not had:
                assert "tier1_bytes_beyond_memory" in store.log
                assert_refused(store.runtime_dir)
                assert wait_until(lambda: "set vm.nr_hugepages to at least" in store.log)
                return
            # Views of other tests' stores, which this process may still have.
            others = page_sizes()
            client, namespace = open_client(store.runtime_dir)
            pages = [write_and_insert(namespace, [n, *TOKENS]) for n in range(40)]
            for number, refs in enumerate(pages):
                assert holds_tokens(namespace, [number, *TOKENS], list[PageRef](refs))
            sizes = {size for place, size in page_sizes().items() if place not in others}
            assert sizes == {str(HUGEPAGE_BYTES >> 10)}
            stats = client.admin.stats()
            assert stats.counters.corrupt_page_count == 0
            assert available_bytes() == before - HUGEPAGE_BYTES * stats.arenas[0].extent_count
            del pages, refs
            client.close()
            assert wait_until(lambda: page_sizes().keys() <= others.keys())
        assert wait_until(lambda: available_bytes() == before)


def assert_refused(runtime_dir: Path) -> None:
    """Checks that a client's namespace stays closed for lack of memory."""
    with Client(runtime_dir) as client:
        namespace = client.namespace(IDENTITY, LAYOUT)
        assert not namespace.wait_open(2)
        assert "POOL_EXHAUSTED" in str(namespace.failure)


def test_a_pool_that_is_too_small_is_said_with_what_to_set() -> None:
    """A pool too small is logged at the start, and a refused extent names the number to set."""
    budget = available_bytes() + (64 << 30)
    settings = ("--hugepages", "2MiB", "--tier1-bytes", str(budget))
    with running_store(*settings, "--extent-bytes", str(budget)) as store:
        assert "tier1_bytes_beyond_memory" in store.log
        assert_refused(store.runtime_dir)
        assert wait_until(lambda: "set vm.nr_hugepages to at least" in store.log)


@pytest.mark.parametrize("hugepages", ["off", "transparent"])
def test_a_store_whose_extents_are_filled_in_many_steps(hugepages: str) -> None:
    """An extent that is filled in steps beside requests is zero, and written pages stay."""
    layout = PageLayout.paged(4, PagedContent(16, 8, 256, "float32"))
    extent, slots = 24 << 20, (24 << 20) // layout.page_bytes
    sizes = ("--tier1-bytes", str(EXTENTS * extent), "--extent-bytes", str(extent))
    tokens = list(range(slots * layout.page_tokens + 1))
    with running_store(*sizes, "--hugepages", hugepages) as store, Client(store.runtime_dir) as c:
        namespace = c.namespace(IDENTITY, layout)
        assert namespace.wait_open(LIMIT), namespace.failure
        with namespace.acquire(tokens, total_page_count=slots) as acquired:
            assert acquired.reservation is not None
            for number, page in enumerate(acquired.reservation.pages):
                assert not any(namespace.page(page))
                namespace.page(page)[:] = bytes([number]) * layout.page_bytes
            acquired.reservation.insert(tokens[:-1], position=0)
        assert wait_until(lambda: c.admin.stats().arenas[0].extent_count == EXTENTS)
        with namespace.match(tokens) as found:
            contents = [bytes(namespace.page(each)[-8:]) for each in found.pages]
        assert contents == [bytes([number]) * 8 for number in range(slots)]
