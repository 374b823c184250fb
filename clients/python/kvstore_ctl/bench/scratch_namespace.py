"""A namespace that a command of kvstore-ctl fills and deletes, and the pool that it is in."""

import secrets
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from kvstore.v1 import lease_pb2, store_pb2, types_pb2
from kvstore_client.admin import connect_admin
from kvstore_client.client import Client
from kvstore_client.config import ClientConfig
from kvstore_client.errors import StoreUnavailable
from kvstore_client.namespace import Namespace
from kvstore_client.values.namespace_key import NamespaceIdentity
from kvstore_client.values.page_layout import OpaqueContent, PageLayout
from kvstore_ctl.terminal_text import counted

PAGE_TOKENS = 16
SALT_BYTES = 16
# Bytes of a page if the store has no pages yet: those of a small model.
PAGE_BYTES = 16 << 10
OPEN_SECONDS = 30.0
# An operator's load measures slow calls too; an engine would give up sooner.
CALL_SECONDS = 10.0
# A shell adds this to a signal's number for the exit status.
SIGNALLED = 128


class Pool(NamedTuple):
    """The slots that a scratch namespace shares with other namespaces of its page size.

    ``others`` is the number of cached pages of the other namespaces.
    """

    slots: int
    free: int
    others: int


class Scratch(NamedTuple):
    """An open namespace and its client."""

    client: Client
    namespace: Namespace

    def counters(self) -> store_pb2.NamespaceInfo:
        """Returns the store's entry of the namespace; raises ``StoreError``."""
        space = self.namespace.namespace_id
        return next(n for n in self.client.admin.namespaces() if n.namespace_id == space)

    def pool(self) -> Pool:
        """Returns the current pool, which grows as it fills. Raises ``StoreError``."""
        stats = self.client.admin.stats()
        space = self.namespace.namespace_id
        own = next(n for n in stats.namespaces if n.namespace_id == space)
        arena = next(each for each in stats.arenas if each.arena_id == own.arena_id)
        others = arena.cached_slot_count - own.cached_page_count
        return Pool(arena.slot_count, arena.free_slot_count + own.cached_page_count, others)


class Before(NamedTuple):
    """The state of the store before a scratch namespace, as far as the caller may see it.

    ``cached_pages`` counts the pages in tier 1, of any size, and ``evicted_pages`` those that
    were evicted or removed. ``has_room`` is True if the caller's tenant already has memory for
    pages of the scratch size; otherwise the store may evict others' pages for it.
    ``tier_3_evicted`` counts evictions from the disk. ``tier_3_at_risk`` names in words the
    pages of tier 3 that may be evicted, and is empty if there are none.
    """

    cached_pages: int
    evicted_pages: int
    has_room: bool
    tier_3_evicted: int
    tier_3_at_risk: str


class ScratchSpec(NamedTuple):
    """The values by which each process opens the same scratch namespace."""

    runtime_dir: Path | None
    purpose: str
    page_bytes: int
    salt: bytes
    before: Before

    def open(self, name: str) -> tuple[Client, Namespace]:
        """Returns a started client and its open namespace; raises ``StoreUnavailable``."""
        config = ClientConfig(display_name=name, call_timeout=CALL_SECONDS)
        client = Client(self.runtime_dir, config)
        client.start()
        identity = NamespaceIdentity(
            sha256(b"kvstore-ctl").digest(),
            salt=self.salt,
            display_name=f"kvstore-ctl {self.purpose}",
        )
        layout = PageLayout(PAGE_TOKENS, self.page_bytes, OpaqueContent(b"kvstore-ctl"))
        namespace = client.namespace(identity, layout)
        if not namespace.wait_open(OPEN_SECONDS):
            failure = namespace.failure
            client.close()
            raise failure or StoreUnavailable("the namespace is not open")
        return client, namespace


@contextmanager
def cleaned_up() -> Iterator[None]:
    """Makes SIGTERM and SIGHUP end the block as Ctrl-C does, so that it cleans up.

    The exit status is as in a shell: 128 and the signal's number. Call it on the main thread.
    """
    before = {each: signal.signal(each, _end) for each in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end(number: int, _: object) -> None:
    for each in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)
    raise SystemExit(SIGNALLED + number)


@contextmanager
def scratch(spec: ScratchSpec) -> Iterator[Scratch]:
    """Opens a scratch namespace, and deletes it at the end. Raises ``StoreError``."""
    client, namespace = spec.open(f"kvstore-ctl {spec.purpose}")
    try:
        namespace_id = namespace.namespace_id
        try:
            yield Scratch(client, namespace)
        finally:
            # Otherwise the client would open it again after the deletion.
            namespace.forget()
            client.admin.delete_namespace(namespace_id)
    finally:
        client.close()


def scratch_spec(
    runtime_dir: Path | None, purpose: str, page_bytes: int | None = None
) -> ScratchSpec:
    """Returns a spec for a new namespace, with a random salt.

    The default of ``page_bytes`` is the size of most pages of the store. Raises ``StoreError``,
    at once if no store runs.
    """
    with connect_admin(runtime_dir, timeout=CALL_SECONDS):
        pass  # fails at once without a store, while a client would wait for one
    name = f"kvstore-ctl {secrets.token_hex(8)}"
    with Client(runtime_dir, ClientConfig(display_name=name)) as client:
        if not client.wait_connected(OPEN_SECONDS):
            raise StoreUnavailable("the store does not answer")
        stats = client.admin.stats()
    tenant = next(each.tenant for each in stats.leases if each.display_name == name)
    size = page_bytes or page_bytes_of(stats, tenant)
    tier_1 = [each for each in stats.arenas if each.tier == types_pb2.TIER_1]
    before = Before(
        sum(each.cached_slot_count for each in tier_1),
        evicted_pages(stats.counters),
        any((each.tenant, each.slot_bytes) == (tenant, size) for each in tier_1),
        stats.tier_3.evicted_page_count,
        tier_3_at_risk(stats.tier_3),
    )
    return ScratchSpec(runtime_dir, purpose, size, secrets.token_bytes(SALT_BYTES), before)


def evicted_pages(counters: lease_pb2.CacheCounters) -> int:
    """Returns the number of pages that were evicted, or removed with their memory."""
    return counters.evicted_page_count + counters.removed_page_count


def tier_3_at_risk(tier_3: store_pb2.Tier3Stats) -> str:
    """Returns in words the pages of tier 3 that may be evicted; empty if there are none.

    For a caller that may not see their number the words name no number.
    """
    if tier_3.size_bytes:
        return f"{counted(tier_3.page_count, 'page')} in tier 3" if tier_3.page_count else ""
    nowhere = (store_pb2.Tier3Stats.STATE_UNSPECIFIED, store_pb2.Tier3Stats.STATE_ABSENT)
    return "" if tier_3.state in nowhere else "the pages in tier 3"


def tier_3_evicted(tier_3: store_pb2.Tier3Stats, before: Before) -> dict[str, int]:
    """Returns the number of evictions from tier 3 since then; empty if it is not visible."""
    if not tier_3.size_bytes:
        return {}
    return {"evicted_pages_of_tier_3": tier_3.evicted_page_count - before.tier_3_evicted}


def page_bytes_of(stats: store_pb2.GetStatsResponse, tenant: str) -> int:
    """Returns the size of most pages of a tenant, so that no memory has to move.

    Returns :data:`PAGE_BYTES` if the tenant has no pages yet.
    """
    slots = {
        each.arena_id: each.slot_count
        for each in stats.arenas
        if each.tenant == tenant and each.tier == types_pb2.TIER_1
    }
    spaces = [
        each
        for each in stats.namespaces
        if each.arena_id in slots and each.layout.tensor_parallel_size <= 1
    ]
    if not spaces:
        return PAGE_BYTES
    return int(max(spaces, key=lambda each: slots[each.arena_id]).layout.page_bytes)
