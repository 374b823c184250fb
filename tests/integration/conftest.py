"""Fixtures of the tests with real sockets and processes."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from wire.attach_rig import AttachRig


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[AttachRig]:
    """Provides a store behind an attach socket."""
    made = AttachRig(tmp_path)
    yield made
    made.close()
