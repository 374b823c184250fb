"""A worker that does not care whether there is a store: every failure is a miss.

It takes the folder of a store, which need not be there; without one it looks where
``kvstore-server`` is by default.
"""

import sys

from kvstore_client import Client, NamespaceIdentity, PagedContent, PageLayout

LAYOUT = PageLayout.paged(
    16, PagedContent(layer_count=2, kv_head_count=4, head_dim=8, dtype="float32")
)


def main(runtime_dir: str | None) -> None:
    """Answer three requests, with whatever the store has."""
    with Client(runtime_dir) as client:
        namespace = client.namespace(NamespaceIdentity(b"some model"), LAYOUT)
        # A moment for a store that is there; without one the requests come all the same.
        namespace.wait_open(2.0)
        for number in range(3):
            prompt = [number, *range(40)]
            with namespace.acquire(prompt, total_page_count=3) as acquired:
                cached = acquired.match.token_count
                where = "private memory" if acquired.reservation is None else "the store"
                print(f"request {number}: {cached} tokens cached, the rest goes to {where}")
                if acquired.failure is not None:
                    print(f"  for {type(acquired.failure).__name__}: {acquired.failure}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)
