"""Two hosts over a real remote store, whose engine is in memory: one computes, the other loads."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from page_stores.remote_rig import RemoteStoreRig, wait_until

from kvstore.core.values.requests import Match
from stores.layered_store import LayeredStore
from stores.store_world import PAGE_TOKENS

PAGES = 40


class Host:
    """A store with a disk of its own, over an engine that hosts share."""

    def __init__(self, folder: Path, values: dict[bytes, tuple[bytes, int]]) -> None:
        self.rig = RemoteStoreRig(folder, values)
        self.layers = LayeredStore(shared=self.rig.store)

    def keep(self) -> None:
        """Writes what was touched to the disk and the engine, and waits for it."""
        cache = self.layers.world.cache
        self.layers.keep()
        wait_until(lambda: self.layers.keep() or not cache.disk_writes)

    def match(self, pages: int) -> Match:
        """Matches a path without a deadline."""
        with self.rig.store._worth._mutex:
            self.rig.store._worth._missing.clear()
        return self.layers.match(pages, remaining=None)

    def close(self) -> None:
        """Ends all."""
        self.rig.store.close()
        self.layers.close()


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[tuple[Host, Host]]:
    """Provides two hosts over one engine."""
    values: dict[bytes, tuple[bytes, int]] = {}
    with ExitStack() as stack:
        made = []
        for name in ("a", "b"):
            made.append(Host(tmp_path / name, values))
            stack.callback(made[-1].close)
        one, other = made
        yield one, other


def test_the_first_match_of_a_host_hits_what_another_one_computed(
    hosts: tuple[Host, Host],
) -> None:
    """All of it comes from the engine, byte for byte, and stays in memory."""
    one, other = hosts
    one.layers.publish(PAGES)
    one.keep()
    found = other.match(PAGES)
    assert found.matched_token_count == found.remote_loaded_token_count == PAGES * PAGE_TOKENS
    again = other.match(PAGES)
    assert (again.matched_token_count, again.tier_3_loaded_token_count) == (PAGES * PAGE_TOKENS, 0)


def test_a_host_goes_on_where_its_disk_ends(hosts: tuple[Host, Host]) -> None:
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
