"""Two extents with a device's copier between them."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from device.copier_rig import Rig


@pytest.fixture
def rig() -> Iterator[Rig]:
    """Both extents, above a driver without batched copies."""
    with ExitStack() as stack:
        made = Rig(stack)
        made.card.batches = False
        yield made
