"""A small slab for each test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from slab.rig import SlabRig, config


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[SlabRig]:
    """A slab of two segments without a page."""
    made = SlabRig(config(tmp_path / "slab"))
    yield made
    made.slab.close()
