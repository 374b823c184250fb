"""A worker that also works without a store: every failure is a miss.

Its prompts share a prefix. With a store the first request computes the prefix, and the others
match it. In a second run every request matches its whole prompt. The argument is the folder of a
store, by default that of ``kvstore-server``. The folder need not exist.
"""

import sys
from contextlib import suppress

from kvstore_client import (
    Acquired,
    Client,
    Namespace,
    NamespaceIdentity,
    PagedContent,
    PageLayout,
)
from kvstore_client.errors import StoreError

LAYOUT = PageLayout.paged(
    16, PagedContent(layer_count=2, kv_head_count=4, head_dim=8, dtype="float32")
)
SYSTEM = list(range(40))
# One page more than a prompt's whole pages, for its end and for generated tokens.
PAGES = 4


def save(namespace: Namespace, acquired: Acquired, prompt: list[int]) -> None:
    """Writes and publishes the whole pages of a prompt that are not cached."""
    start, end = acquired.match.token_count, len(prompt) // LAYOUT.page_tokens * LAYOUT.page_tokens
    if acquired.reservation is None or start == end:
        return
    for page in acquired.reservation.pages[: (end - start) // LAYOUT.page_tokens]:
        # A real engine writes keys and values here, on the CPU or a GPU.
        namespace.page(page)[:] = b"\x2a" * LAYOUT.page_bytes
    with suppress(StoreError):  # a store that went away costs later hits alone
        acquired.reservation.insert(prompt[start:end], position=start, base=acquired.match)


def main(runtime_dir: str | None) -> None:
    """Answers three requests, and reuses the cached part of each."""
    with Client(runtime_dir) as client:
        namespace = client.namespace(NamespaceIdentity(b"some model"), LAYOUT)
        # Waits a moment for a store. The requests also run without one.
        namespace.wait_open(2.0)
        for number in range(3):
            prompt = [*SYSTEM, *[1_000 + number] * LAYOUT.page_tokens]
            with namespace.acquire(prompt, total_page_count=PAGES) as acquired:
                cached = acquired.match.token_count
                where = "private memory" if acquired.reservation is None else "the store"
                print(f"request {number}: {cached} tokens cached, the rest goes to {where}")
                if acquired.failure is not None:
                    print(f"  for {type(acquired.failure).__name__}: {acquired.failure}")
                save(namespace, acquired, prompt)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)
