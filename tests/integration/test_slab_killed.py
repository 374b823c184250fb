"""Kill -9 of a process that writes a slab: every acknowledged page is there and right."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kvstore.storage.errors import SlabInUse
from kvstore.storage.slab.slab import Slab
from support.slab.kills import CHILD, SIZE_BYTES, child_environment, run_kills, settings


def test_a_killed_writer_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    """After each kill acknowledged pages are served, none is wrong, and removed ones stay away."""
    found = run_kills(tmp_path, kills=4, seed=7)
    assert found["acknowledged_pages"] > 0
    assert found["acknowledged_and_served"] == found["acknowledged_pages"]
    assert found["served_pages"] >= found["acknowledged_pages"]
    assert (found["wrong_pages"], found["returned_pages"], found["corrupt_pages"]) == (0, 0, 0)


def test_a_slab_of_a_living_process_is_refused(tmp_path: Path) -> None:
    """A slab in use cannot be opened by another process until the first is killed."""
    path = tmp_path / "slab"
    command = [sys.executable, str(CHILD), str(path), str(SIZE_BYTES), "0", str(os.getpid())]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=child_environment()) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline().startswith(b"a")
        with pytest.raises(SlabInUse, match="another process"):
            Slab(settings(path, SIZE_BYTES))
        writer.send_signal(signal.SIGKILL)
        writer.stdout.read()
    with Slab(settings(path, SIZE_BYTES)) as slab:
        assert slab.use().page_count > 0
