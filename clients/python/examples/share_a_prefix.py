"""Two clients share the pages of a prefix: one computes and inserts, the other finds them.

It takes the folder of a store; without one it looks where ``kvstore-server`` is by default.
"""

import sys

from kvstore_client import Client, NamespaceIdentity, PagedContent, PageLayout

IDENTITY = NamespaceIdentity(model_digest=b"what the model's weights and settings come to")
LAYOUT = PageLayout.paged(
    16, PagedContent(layer_count=2, kv_head_count=4, head_dim=8, dtype="float32")
)
PROMPT = list(range(100))


def main(runtime_dir: str | None) -> None:
    """Inserts a prompt's whole pages as one worker, and matches them as another."""
    with Client(runtime_dir) as first, Client(runtime_dir) as second:
        ours = first.namespace(IDENTITY, LAYOUT)
        theirs = second.namespace(IDENTITY, LAYOUT)
        if not (ours.wait_open(10) and theirs.wait_open(10)):
            sys.exit(f"no store: {ours.failure or theirs.failure}")

        whole_pages = len(PROMPT) // LAYOUT.page_tokens
        with ours.acquire(PROMPT, total_page_count=whole_pages) as acquired:
            start = acquired.match.token_count
            print(f"first: {start} of {len(PROMPT)} tokens are cached")
            if acquired.reservation is not None:
                for page in acquired.reservation.pages:
                    # A real engine writes keys and values here, on the CPU or a GPU.
                    ours.page(page)[:] = b"\x2a" * LAYOUT.page_bytes
                end = whole_pages * LAYOUT.page_tokens
                inserted = acquired.reservation.insert(
                    PROMPT[start:end], position=start, base=acquired.match
                )
                print(f"first: published {inserted.published_page_count} pages")

        with theirs.match(PROMPT) as match:
            print(f"second: {match.token_count} of {len(PROMPT)} tokens are cached")
            print(f"second: the pages hold {bytes(theirs.page(match.pages[0])[:2])!r}...")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)
