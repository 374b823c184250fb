"""Two hosts over a real remote store, whose engine is in memory: one computes, the other loads."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from page_stores.layered_host import LayeredHost

from stores.store_world import PAGE_TOKENS

PAGES = 40


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[tuple[LayeredHost, LayeredHost]]:
    """Provides two hosts over one engine."""
    values: dict[bytes, tuple[bytes, int]] = {}
    with ExitStack() as stack:
        made = []
        for name in ("a", "b"):
            made.append(LayeredHost(tmp_path / name, values))
            stack.callback(made[-1].close)
        one, other = made
        yield one, other


def test_the_first_match_of_a_host_hits_what_another_one_computed(
    hosts: tuple[LayeredHost, LayeredHost],
) -> None:
    """All of it comes from the engine, byte for byte, and stays in memory."""
    one, other = hosts
    one.layers.publish(PAGES)
    one.keep()
    found = other.match(PAGES)
    assert found.matched_token_count == found.remote_loaded_token_count == PAGES * PAGE_TOKENS
    again = other.match(PAGES)
    assert (again.matched_token_count, again.tier_3_loaded_token_count) == (PAGES * PAGE_TOKENS, 0)


def test_a_host_goes_on_where_its_disk_ends(hosts: tuple[LayeredHost, LayeredHost]) -> None:
    """It computed the beginning itself, and another host the rest."""
    one, other = hosts
    other.layers.publish(10)
    other.keep()
    one.layers.publish(PAGES)
    one.keep()
    other.layers.evict()
    found = other.match(PAGES)
    assert found.matched_token_count == PAGES * PAGE_TOKENS
    assert found.remote_loaded_token_count == (PAGES - 10) * PAGE_TOKENS
