"""A program whose client is traced: ``python traced_client.py RUNTIME_DIR lanes|grpc``.

It fills tier 1 with more than fits, and then asks for what went first. The store has to have
written all of it to tier 2 by itself: ``--tier2-write through``.
"""

import sys
from functools import partial
from pathlib import Path

from kvstore import tracing
from kvstore_client import Client, ClientConfig, NamespaceIdentity
from kvstore_client.testing import wait_until
from kvstore_client.values.page_layout import OpaqueContent, PageLayout

LIMIT = 30.0
PAGE_TOKENS, PAGE_BYTES, PAGES, SEQUENCES = 16, 4096, 4, 6


def tokens_of(number: int) -> list[int]:
    """Returns a sequence's tokens."""
    return [number * 1000 + each for each in range(PAGES * PAGE_TOKENS)]


def has_demoted(client: Client, page_count: int) -> bool:
    """Returns whether so many pages got their copy in tier 2."""
    return client.admin.stats().counters.demoted_page_count >= page_count


def main(runtime_dir: Path, *, lanes: bool) -> None:
    """Publishes sequences, then match the first one, each in a span of its own."""
    layout = PageLayout(PAGE_TOKENS, PAGE_BYTES, OpaqueContent(b"traced"))
    with Client(runtime_dir, ClientConfig(hot_lane=lanes)) as client:
        namespace = client.namespace(NamespaceIdentity(b"m"), layout)
        assert namespace.wait_open(LIMIT), namespace.failure
        for number in range(SEQUENCES):
            tokens = tokens_of(number)
            with (
                tracing.span("publish"),
                namespace.acquire([*tokens, 1], total_page_count=PAGES) as acquired,
            ):
                assert acquired.reservation is not None, acquired.failure
                acquired.reservation.insert(tokens, position=0)
            # The next one needs slots that nothing holds, and whoever is faster than the mover
            # evicts what has no copy yet.
            assert client.flush(LIMIT)
            assert wait_until(partial(has_demoted, client, PAGES * (number + 1)), LIMIT)
        with tracing.span("again"), namespace.match([*tokens_of(0), 1]) as match:
            assert match.page_count == PAGES, match.failure


if __name__ == "__main__":
    with tracing.exported("client", "0"):
        main(Path(sys.argv[1]), lanes=sys.argv[2] == "lanes")
