"""Helpers that run the stand-in. It is apart from that one, whose processes import it alone."""

from pathlib import Path

from kvstore.remote.process.helper_process import HelperCommand
from kvstore.remote.process.process_engine import ProcessEngine
from remote.stand_in_engine import CAPABILITIES


def stand_in_engine(folder: Path, *, helpers: int = 2) -> ProcessEngine:
    """Returns an engine over helpers that run the stand-in on a folder."""
    command = HelperCommand(
        "remote.stand_in_engine:StandInEngine", {"folder": str(folder)}, memory_bytes=8 << 20
    )
    return ProcessEngine(command, CAPABILITIES, helpers=helpers)
