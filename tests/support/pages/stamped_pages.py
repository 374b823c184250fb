"""Small pages whose bytes say which tokens they are of, and which write they come from.

The bytes are those of ``support.page_stamps``. A page of other tokens, one torn between two
writes, and one with a changed byte are all seen.
"""

from array import array
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
from support.page_stamps import PageKey, Stamp, WrongPage, page_keys, stamp_of, stamped

__all__ = ["Stamp", "WrongPage"]

IDENTITY = NamespaceIdentity(b"model", display_name="tiny")
LAYOUT = PageLayout.paged(4, PagedContent(4, 2, 16, "float32"))
# Four pages, and the one token that a match leaves.
TOKENS = list(range(1000, 1017))
# A prompt's parts; prompts that begin with the same parts share their pages.
PART_PAGES = 4
PART_TOKENS = PART_PAGES * LAYOUT.page_tokens
# The write of tests in which nobody else writes.
WRITE = Stamp("test", 0)
# A page is written piece by piece, so that one that is used too early shows as torn.
PIECE_BYTES = LAYOUT.page_bytes // 16
LIMIT = 30.0
# 16 slots in each extent, 32 in all.
SMALL_STORE = (
    *("--extent-bytes", str(16 * LAYOUT.page_bytes)),
    *("--tier1-bytes", str(32 * LAYOUT.page_bytes)),
)


def prompt(*parts: int, page_tokens: int = LAYOUT.page_tokens) -> list[int]:
    """Returns four pages of tokens for each part, and the one token that a match leaves."""
    count = PART_PAGES * page_tokens
    return [part * 1000 + each for part in parts for each in range(count)] + [7]


def page_count(tokens: list[int]) -> int:
    """Returns the number of whole pages."""
    return len(tokens) // LAYOUT.page_tokens


def keys_of(tokens: list[int], page_tokens: int = LAYOUT.page_tokens) -> list[PageKey]:
    """Returns the key of each page of a sequence, also of its last, partial one."""
    return [*page_keys(array("I", tokens).tobytes(), page_tokens)]


def page_bytes(tokens: list[int], page: int, stamp: Stamp = WRITE) -> bytes:
    """Returns what a write puts into a whole page of a sequence."""
    return stamped(keys_of(tokens)[page], stamp, LAYOUT.page_bytes)


def write_page(view: memoryview, tokens: list[int], page: int, stamp: Stamp) -> None:
    """Writes a page of a sequence, piece by piece."""
    content = page_bytes(tokens, page, stamp)
    for start in range(0, len(content), PIECE_BYTES):
        view[start : start + PIECE_BYTES] = content[start : start + PIECE_BYTES]


def stamps_of(
    namespace: Namespace, tokens: list[int], pages: list[PageRef], *, first: int = 0
) -> list[Stamp]:
    """Returns the writes of consecutive pages of a sequence; raises WrongPage."""
    contents = (bytes(namespace.page(page)) for page in pages)
    return [stamp_of(*each) for each in zip(contents, keys_of(tokens)[first:], strict=False)]


def holds_tokens(namespace: Namespace, tokens: list[int], pages: list[PageRef]) -> bool:
    """Returns whether the first pages of ``tokens`` hold what was written for them."""
    return all(namespace.page(page) == page_bytes(tokens, n) for n, page in enumerate(pages))


def hits(namespace: Namespace) -> bool:
    """Returns whether the tokens' pages are matched."""
    with namespace.match(TOKENS) as match:
        return match.token_count == len(TOKENS) - 1


def write_and_insert(namespace: Namespace, tokens: list[int]) -> list[PageRef]:
    """Puts the whole pages of ``tokens`` into the store; returns the index's pages.

    Waits for slots: for a moment the store has memory that this process has yet to map.
    """
    pages: list[PageRef] = []
    assert wait_until(lambda: _write(namespace, tokens, pages)), "no slots"
    return pages


def _write(namespace: Namespace, tokens: list[int], pages: list[PageRef]) -> bool:
    """Adds the index's pages to ``pages``; returns False without slots."""
    count = page_count(tokens)
    with namespace.acquire(tokens, total_page_count=count) as acquired:
        assert acquired.failure is None, acquired.failure
        matched = acquired.match.page_count
        if matched < count and acquired.reservation is None:
            return False
        pages += acquired.match.pages
        if matched < count:
            assert acquired.reservation is not None
            for number, page in enumerate(acquired.reservation.pages, start=matched):
                namespace.page(page)[:] = page_bytes(tokens, number)
            start = matched * LAYOUT.page_tokens
            new = tokens[start : count * LAYOUT.page_tokens]
            inserted = acquired.reservation.insert(new, position=start, base=acquired.match)
            pages += inserted.pages
    return True


def open_client(runtime_dir: Path, config: ClientConfig | None = None) -> tuple[Client, Namespace]:
    """Returns a started client and its open namespace; by default its calls have 30 s."""
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
