"""Pages whose bytes say which tokens they are of, so that any wrong page is seen."""

from pathlib import Path

from kvstore_client import (
    Client,
    ClientConfig,
    Namespace,
    NamespaceIdentity,
    PagedContent,
    PageLayout,
    PageRef,
)
from kvstore_client.testing import wait_until

IDENTITY = NamespaceIdentity(b"model", display_name="tiny")
LAYOUT = PageLayout.paged(4, PagedContent(2, 1, 8, "float32"))
# Four pages, and the one token that a match leaves.
TOKENS = list(range(1000, 1017))
LIMIT = 30.0
# 16 slots in each extent, 32 in all.
SMALL_STORE = (
    *("--extent-bytes", str(16 * LAYOUT.page_bytes)),
    *("--tier1-bytes", str(32 * LAYOUT.page_bytes)),
)


def pattern(tokens: list[int], page: int) -> bytes:
    """Returns what the bytes of a page are, by all the tokens up to its end."""
    key = repr(tokens[: (page + 1) * LAYOUT.page_tokens]).encode()
    return (key * LAYOUT.page_bytes)[: LAYOUT.page_bytes]


def holds_pattern(namespace: Namespace, tokens: list[int], pages: list[PageRef]) -> bool:
    """Returns whether the first pages of ``tokens`` hold what was written for them."""
    return all(namespace.page(p) == pattern(tokens, n) for n, p in enumerate(pages))


def write_and_insert(namespace: Namespace, tokens: list[int]) -> list[PageRef]:
    """Puts the whole pages of ``tokens`` into the store; returns the index's pages.

    Waits for slots: for a moment the store has memory that this process has yet to map.
    """
    pages: list[PageRef] = []
    assert wait_until(lambda: _write(namespace, tokens, pages)), "no slots"
    return pages


def _write(namespace: Namespace, tokens: list[int], pages: list[PageRef]) -> bool:
    """Writes and insert, and add the index's pages to ``pages``; False where slots lack."""
    count = len(tokens) // LAYOUT.page_tokens
    with namespace.acquire(tokens, total_page_count=count) as acquired:
        assert acquired.failure is None, acquired.failure
        matched = acquired.match.page_count
        if matched < count and acquired.reservation is None:
            return False
        pages += acquired.match.pages
        if matched < count:
            assert acquired.reservation is not None
            for number, page in enumerate(acquired.reservation.pages, start=matched):
                namespace.page(page)[:] = pattern(tokens, number)
            start = matched * LAYOUT.page_tokens
            new = tokens[start : count * LAYOUT.page_tokens]
            inserted = acquired.reservation.insert(new, position=start, base=acquired.match)
            pages += inserted.pages
    return True


def open_client(runtime_dir: Path, config: ClientConfig | None = None) -> tuple[Client, Namespace]:
    """Returns a started client and its open namespace; unless told, it has patience."""
    client = Client(runtime_dir, config or ClientConfig(call_timeout=LIMIT))
    client.start()
    namespace = client.namespace(IDENTITY, LAYOUT)
    assert namespace.wait_open(LIMIT), namespace.failure
    return client, namespace


def nothing_held(client: Client) -> bool:
    """Returns whether nobody has pins, reservations or unpublished slots at the store."""
    stats = client.admin.stats()
    slots = sum(a.reserved_slot_count + a.quarantined_slot_count for a in stats.arenas)
    return (stats.pin_count, stats.reservation_count, slots) == (0, 0, 0)


def memfd_mappings() -> int:
    """Counts this process's mappings of extents' pages; those of their generations go with them."""
    return Path("/proc/self/maps").read_text(encoding="utf-8").count("/memfd:kvstore-extent")
