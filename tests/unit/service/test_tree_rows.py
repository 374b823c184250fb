"""A tree that is read a part at a time, while calls change it in between."""

from collections.abc import Callable
from random import Random

import pytest

from kvstore.core.stats import COLUMNS
from kvstore.core.values.requests import Identity
from kvstore.page.outline import Outline
from kvstore.page.site import PageSite
from kvstore.service import admin
from stores.page_world import PageWorld
from stores.store_world import make_world

ADMIN = Identity("root", admin=True)


def read_while(
    monkeypatch: pytest.MonkeyPatch, page: PageWorld, between: Callable[[], None]
) -> Outline:
    """Reads the tree a node at a time, with something happening after each."""
    monkeypatch.setattr(admin, "NODES_READ_AT_ONCE", 1)
    monkeypatch.setattr(admin, "sleep", lambda _: between())
    rows = page.world.store.tree_rows(ADMIN, page.namespace_id)
    numbers = list(rows[:: len(COLUMNS)])
    assert numbers == sorted(set(numbers))
    outline = Outline(rows)
    root = outline.look(0, count=1000)
    assert root is not None
    # Whatever was read is in the picture, once, wherever it hangs.
    assert root["total"] == sum(rows[3 :: len(COLUMNS)])
    assert root["nodes"] == len(numbers)
    return outline


@pytest.mark.parametrize("seed", range(20))
def test_a_tree_that_changes_is_read_without_a_node_in_the_air(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Prompts come, part, go and become one while it is read; every row fits the others."""
    rng = Random(seed)
    made = make_world(slots=256, extent_slots=256)
    caller = made.worker()
    namespace_id = made.open_namespace(caller)
    site = PageSite(made.store, made.clock, budgets={})
    page = PageWorld(made, site, caller, namespace_id)

    def prompt() -> list[int]:
        return [each for _ in range(rng.randint(1, 4)) for each in (0, 0, 0, rng.randint(0, 2))]

    def change() -> None:
        tokens = prompt()
        if rng.random() < 0.5:
            page.publish(*tokens)
        else:
            packed = b"".join(each.to_bytes(4, "little") for each in tokens)
            made.store.evict_prefix(ADMIN, namespace_id, packed)

    for _ in range(10):
        page.publish(*prompt())
    read_while(monkeypatch, page, change)
    made.close()


def test_a_tree_at_rest_is_read_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """In parts of whatever size: all nodes and tokens that the index has."""
    made = make_world(slots=64, extent_slots=64)
    caller = made.worker()
    namespace_id = made.open_namespace(caller)
    page = PageWorld(made, PageSite(made.store, made.clock, budgets={}), caller, namespace_id)
    for last in range(6):
        page.publish(1, 2, 3, 4, 5, 6, 7, last)
    outline = read_while(monkeypatch, page, lambda: None)
    root = outline.look(0, count=1000)
    assert root is not None
    assert (len(outline), root["total"]) == (7, 4 + 6 * 4)
    made.close()
