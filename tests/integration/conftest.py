"""Fixtures of the tests with real sockets and processes."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from processes.worker_fleet import Fleet, running_fleet
from wire.attach_rig import AttachRig


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[AttachRig]:
    """Provides a store behind an attach socket."""
    made = AttachRig(tmp_path)
    yield made
    made.close()


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    """Provides workers, with a TTL of 300 s, on a store of 64 pages."""
    with running_fleet() as running:
        yield running
