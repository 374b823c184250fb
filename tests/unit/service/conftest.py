"""A store in this process, for each test."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from stores.disk_store import DiskStores
from stores.store_world import World, Worlds, make_world


@pytest.fixture
def worlds() -> Iterator[Worlds]:
    """Provides a maker of stores, which end with the test."""
    made: list[World] = []

    def make(**settings: Any) -> World:  # noqa: ANN401 - what make_world takes
        world = make_world(**settings)
        made.append(world)
        return world

    yield make
    for world in made:
        world.close()


@pytest.fixture
def world(worlds: Worlds) -> World:
    """Provides one store."""
    return worlds()


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[DiskStores]:
    """Provides a maker of stores over one file, which end with the test."""
    with closing(DiskStores(tmp_path)) as made:
        yield made
