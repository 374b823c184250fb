"""A page over a store in this process."""

from collections.abc import Iterator

import pytest

from stores.page_world import PageWorld
from stores.store_world import make_world


@pytest.fixture
def page() -> Iterator[PageWorld]:
    """A page before its first poll."""
    made = make_world(slots=32, extent_slots=32)
    caller = made.worker(name="worker <b>A</b>")
    yield PageWorld(made, caller, made.open_namespace(caller))
    made.close()
