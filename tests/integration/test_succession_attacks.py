"""Attacks on the memory that outlives a server: secrets in it, and a kill during a disk load."""

import os
from collections.abc import Iterator
from contextlib import closing
from hashlib import sha256
from itertools import count
from pathlib import Path

import pytest

from kvstore.core.journal.rows import LeaseRow, Table
from kvstore.holder.holder_client import HolderConnection
from kvstore.service.tenancy.credentials import Credentials
from kvstore.succession.journal.durable_journal import DurableJournal
from kvstore_client import Client, ClientConfig, Namespace
from kvstore_client.testing import RunningStore, running_store, wait_until
from pages.stamped_pages import (
    LIMIT,
    SMALL_STORE,
    TOKENS,
    open_client,
    prompt,
    stamps_of,
    write_and_insert,
)
from processes.holder_folder import HolderFolder

PAGES = 4
SECRET_BYTES = 32
# Reads a load's pages from the disk into their slots, tears half of them, and kills itself before
# they are published.
DIES_IN_A_LOAD = """
import os, signal, sys
from kvstore import server
from kvstore.service.page_io.loads.path_load import PathLoad
def tear_and_die(self, run):
    for each in run.targets[::2]:
        each.view[: len(each.view) // 2] = bytes(len(each.view) // 2)
    os.kill(os.getpid(), signal.SIGKILL)
PathLoad._publish = tear_and_die
sys.exit(server.run())
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[HolderFolder]:
    """Provides a holder's process."""
    with HolderFolder(tmp_path / "holder") as started:
        yield started


def settings(holder: HolderFolder, *more: str) -> tuple[str, ...]:
    """Returns the settings of a store of 32 pages whose memory a holder keeps."""
    return (*SMALL_STORE, "--holder", str(holder.path), "--no-holder-start", *more)


def memories(holder: HolderFolder) -> dict[str, bytes]:
    """Returns the bytes of all memory that a holder has, by name."""
    found = {}
    with closing(HolderConnection(holder.path)) as connection:
        for name, each in connection.descriptors():
            if each.identity.size_bytes:
                found[name] = os.pread(each.descriptor, each.identity.size_bytes, 0)
            os.close(each.descriptor)
    return found


def names_with(held: dict[str, bytes], secret: bytes) -> set[str]:
    """Returns the names of the memory that has some bytes."""
    assert len(secret) >= SECRET_BYTES
    return {name for name, content in held.items() if secret in content}


def test_memory_has_digests_in_place_of_secrets(holder: HolderFolder) -> None:
    """No held memory has a lease's secret or a credential; the journal has the store's key."""
    with running_store(*settings(holder)) as store:
        client, namespace = open_client(store.runtime_dir)
        with closing(client):
            write_and_insert(namespace, TOKENS)
            client.admin.pin_prefix(namespace.namespace_id, "system", TOKENS)
            secret = client.share_lease()[-SECRET_BYTES:]
            with namespace.match(TOKENS):
                held = memories(holder)
    journal = {name: each for name, each in held.items() if name.startswith("journal-")}
    views = {name: memoryview(bytearray(each)) for name, each in journal.items()}
    opened = DurableJournal.open(views)
    [lease] = opened.contents().rows[Table.LEASES].values()
    assert isinstance(lease, LeaseRow)
    assert lease.secret_digest == sha256(secret).digest()
    assert names_with(held, lease.secret_digest) == {"journal-ring-0"}
    credential = Credentials(key=opened.store.credential_key).issue(os.getuid())
    assert names_with(held, secret) == names_with(held, credential.encode()) == set()
    assert names_with(held, opened.store.credential_key) == {"journal-ring-0"}


def test_workers_get_no_memory_of_the_journal(holder: HolderFolder) -> None:
    """A worker maps the pages and generations of its tenant, and nothing else."""
    with running_store(*settings(holder)) as store:
        client, namespace = open_client(store.runtime_dir)
        with closing(client):
            write_and_insert(namespace, TOKENS)
            with closing(HolderConnection(holder.path)) as connection:
                inodes = {}
                for name, each in connection.descriptors():
                    inodes[each.identity.inode] = name
                    os.close(each.descriptor)
            maps = Path("/proc/self/maps").read_text(encoding="ascii")
            mapped = {int(line.split()[4]) for line in maps.splitlines()}
            names = {inodes[each] for each in mapped & inodes.keys()}
    assert names
    assert all(name.startswith("extent-") for name in names)


def test_a_load_that_a_kill_cut_off_publishes_nothing(tmp_path: Path, holder: HolderFolder) -> None:
    """Slots that were being filled from the disk are free afterwards, whatever is in them."""
    slab = ("--tier3-path", str(tmp_path / "slab"), "--tier3-bytes", "4MiB")
    options = settings(holder, *slab, "--tier3-write", "through")
    with running_store(*options, program=("-c", DIES_IN_A_LOAD)) as store:
        client, namespace = open_client(store.runtime_dir)
        with closing(client):
            write_and_insert(namespace, TOKENS)
            assert wait_until(lambda: is_kept(client))
            push_out(namespace)
            namespace.match(TOKENS).release()
            assert store._started().wait(LIMIT) == -9
        store._program = ["-m", "kvstore"]
        store.start()
        assert store.log.count("store_recovered") == 1
        assert wait_until(lambda: found(store) == PAGES)
        with Client(store.runtime_dir, ClientConfig(call_timeout=LIMIT)) as client:
            assert wait_until(lambda: client.connected)
            for arena in client.admin.stats().arenas:
                assert arena.slot_count == arena.free_slot_count + arena.cached_slot_count


def push_out(namespace: Namespace) -> None:
    """Inserts prompts until TOKENS have left memory. The write to tier 3 may still hold them."""
    parts = count(2)

    def are_out() -> bool:
        write_and_insert(namespace, prompt(next(parts)))
        return namespace.peek(TOKENS) == 0

    assert wait_until(are_out)


def is_kept(client: Client) -> bool:
    """Returns whether tier 3 has all pages of TOKENS, in the only namespace."""
    [info] = client.admin.namespaces()
    kept = client.admin.peek_prefix(info.namespace_id, TOKENS).tier_3_token_count
    return bool(kept == len(TOKENS) - 1)


def found(store: RunningStore) -> int:
    """Returns how many pages of TOKENS a new client finds, all with the right bytes."""
    client, namespace = open_client(store.runtime_dir)
    with closing(client), namespace.match(TOKENS) as match:
        assert len(stamps_of(namespace, TOKENS, match.pages)) == match.page_count
        return match.page_count
