"""A store in this process, for each test."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from store_world import World, Worlds, make_world


@pytest.fixture
def worlds() -> Iterator[Worlds]:
    """Provide a maker of stores, which end with the test."""
    made: list[World] = []

    def make(*, slots: int = 10, extent_slots: int = 4, memory_root: Path = Path("/")) -> World:
        world = make_world(slots=slots, extent_slots=extent_slots, memory_root=memory_root)
        made.append(world)
        return world

    yield make
    for world in made:
        world.arenas.close()


@pytest.fixture
def world(worlds: Worlds) -> World:
    """Provide one store."""
    return worlds()
