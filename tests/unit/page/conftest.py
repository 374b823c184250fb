"""A page on a store in this process."""

from collections.abc import Iterator

import pytest

from kvstore.page.site import PageSite
from stores.page_world import PageWorld
from stores.store_world import make_world


@pytest.fixture
def page() -> Iterator[PageWorld]:
    """A page without anything to show yet."""
    made = make_world(slots=32, extent_slots=32)
    caller = made.worker(name="worker <b>A</b>")
    namespace_id = made.open_namespace(caller)
    site = PageSite(made.store, made.clock, budgets={1: 32 * 256})
    yield PageWorld(made, site, caller, namespace_id)
    made.close()
