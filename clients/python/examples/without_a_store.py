"""A worker that does not care whether there is a store: every failure is a miss.

Its prompts begin alike. With a store the first request computes what the others find, and
every request of a second run finds its prompt.
It takes the folder of a store, which need not be there; without one it looks where
``kvstore-server`` is by default.
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
# A page more than a prompt's whole ones, for its end and for what is generated.
PAGES = 4


def save(namespace: Namespace, acquired: Acquired, prompt: list[int]) -> None:
    """Writes and publish those whole pages of a prompt that are not cached."""
    start, end = acquired.match.token_count, len(prompt) // LAYOUT.page_tokens * LAYOUT.page_tokens
    if acquired.reservation is None or start == end:
        return
    for page in acquired.reservation.pages[: (end - start) // LAYOUT.page_tokens]:
        # A real engine writes keys and values here, on the CPU or a GPU.
        namespace.page(page)[:] = b"\x2a" * LAYOUT.page_bytes
    with suppress(StoreError):  # a store that went away costs later hits alone
        acquired.reservation.insert(prompt[start:end], position=start, base=acquired.match)


def main(runtime_dir: str | None) -> None:
    """Answers three requests, with whatever the store has."""
    with Client(runtime_dir) as client:
        namespace = client.namespace(NamespaceIdentity(b"some model"), LAYOUT)
        # A moment for a store that is there; without one the requests come all the same.
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
