"""A store and its holder in cgroups with memory limits, split as in deploy/."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from deploy.tools import HOLDER_ROOM
from kvstore_client import (
    Client,
    ClientConfig,
    Namespace,
    NamespaceIdentity,
    PagedContent,
    PageLayout,
)
from kvstore_client.errors import PoolExhausted
from kvstore_client.testing import RunningStore, running_store, wait_until
from processes.holder_folder import HolderFolder
from processes.memory_cgroup import MemoryCgroup, why_not

WHY_NOT = why_not()
pytestmark = pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))
MIB = 1 << 20
TIER_BYTES = 256 * MIB
JOURNAL_BYTES = 16 * MIB
# Less than the tier.
STORE_BYTES = 192 * MIB
# Of 1 MiB each, and a prompt of four.
LAYOUT = PageLayout.paged(16, PagedContent(8, 8, 128, "float32"))
TOKENS = list(range(4 * LAYOUT.page_tokens))
LIMIT = 30.0


@contextmanager
def limited_store(folder: Path, holder_limit: MemoryCgroup) -> Iterator[RunningStore]:
    """Runs a store within STORE_BYTES, beside a holder within its own limit."""
    holder = HolderFolder(folder / "holder")
    with MemoryCgroup(STORE_BYTES) as own:
        holder.start(before=f"echo $$ > {holder_limit.members};")
        member = f"import os; open({str(own.members)!r}, 'w').write(str(os.getpid()))"
        program = ("-c", f"{member}; import kvstore.server as server; server.run()")
        flags = ("--tier1-bytes", str(TIER_BYTES), "--holder", str(holder.path))
        try:
            with running_store(*flags, "--no-holder-start", program=program) as store:
                yield store
                assert own.used_bytes < STORE_BYTES // 2
        finally:
            holder.kill()


@contextmanager
def worker(store: RunningStore) -> Iterator[tuple[Client, Namespace]]:
    """Provides a client with an open namespace."""
    client = Client(store.runtime_dir, ClientConfig(call_timeout=LIMIT))
    with closing(client):
        client.start()
        namespace = client.namespace(NamespaceIdentity(b"model"), LAYOUT)
        assert namespace.wait_open(LIMIT), namespace.failure
        yield client, namespace


def arena_bytes(client: Client) -> int:
    """Returns the bytes of all arenas."""
    return sum(each.slot_count * each.slot_bytes for each in client.admin.stats().arenas)


def ask_for_all(namespace: Namespace) -> None:
    """Reserves more than an extent has, so that the arena grows."""
    try:
        namespace.reserve(start_page=0, page_count=TIER_BYTES // LAYOUT.page_bytes).abort()
    except PoolExhausted:
        return


def test_the_holder_s_limit_counts_the_pages(tmp_path: Path) -> None:
    """The whole tier fits, though the store's limit is less, and the next store goes on with it."""
    with (
        MemoryCgroup(TIER_BYTES + JOURNAL_BYTES + HOLDER_ROOM) as limit,
        limited_store(tmp_path, limit) as store,
    ):
        with worker(store) as (client, namespace):

            def is_whole() -> bool:
                """Returns whether the arena has the whole budget."""
                ask_for_all(namespace)
                return arena_bytes(client) == TIER_BYTES

            assert wait_until(is_whole)
            with namespace.reserve(start_page=0, page_count=4) as reservation:
                for page in reservation.pages:
                    namespace.page(page)[:] = bytes(LAYOUT.page_bytes)
                reservation.insert(TOKENS, position=0)
        assert limit.used_bytes >= TIER_BYTES
        store.restart()
        with worker(store) as (client, namespace), namespace.match([*TOKENS, 1]) as match:
            assert match.page_count == 4
            assert arena_bytes(client) == TIER_BYTES
        assert "extent_refused" not in store.log
        assert "beyond_memory" not in store.log


def test_a_holder_without_room_refuses_and_lives(tmp_path: Path) -> None:
    """The store has fewer extents, and says by which limit."""
    with (
        MemoryCgroup(TIER_BYTES // 2 + HOLDER_ROOM) as limit,
        limited_store(tmp_path, limit) as store,
        worker(store) as (client, namespace),
    ):

        def is_refused() -> bool:
            """Returns whether the store was refused an extent."""
            ask_for_all(namespace)
            return "extent_refused" in store.log

        assert wait_until(is_refused)
        assert 0 < arena_bytes(client) < TIER_BYTES
        assert client.admin.stats().succession.behind_count == 0
