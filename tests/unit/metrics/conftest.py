"""A store in this process, for each test."""

from collections.abc import Iterator

import pytest

from stores.store_world import World, make_world


@pytest.fixture
def world() -> Iterator[World]:
    """Provides one store."""
    made = make_world()
    yield made
    made.close()
