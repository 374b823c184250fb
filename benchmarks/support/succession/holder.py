"""A holder's process, which may be killed and started again."""

import os
import subprocess
import sys
from pathlib import Path

from kvstore.holder import holder_process
from kvstore.holder.carrier import CarrierLost
from kvstore.holder.holder_client import HolderConnection
from kvstore_client.testing import wait_until
from support.child import die_with_parent
from support.succession.mutants import MUTANTS

BENCHMARKS = Path(__file__).parents[2]
START_TIMEOUT = 30.0


class Holder:
    """A ``kvstore-holder`` in a folder of its own. One thread uses it.

    ``mutant`` is a name of MUTANTS or empty.
    """

    def __init__(self, folder: Path, mutant: str = "") -> None:
        self.folder = folder
        self._mutant = mutant
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts the holder, and waits until it accepts connections."""
        code = (
            f"import sys; sys.path.insert(0, {str(BENCHMARKS)!r}); "
            "from support.succession.holder import main; "
            f"sys.exit(main({str(self.folder)!r}, {self._mutant!r}, {os.getpid()}))"
        )
        self._process = subprocess.Popen(  # noqa: S603  # our own program
            [sys.executable, "-c", code], stdin=subprocess.DEVNULL
        )
        if not wait_until(self._accepts, START_TIMEOUT):
            self.kill()
            raise RuntimeError("the holder does not start")

    def _accepts(self) -> bool:
        try:
            HolderConnection(self.folder).close()
        except CarrierLost:
            return False
        return True

    def kill(self) -> None:
        """Kills the holder. Memory that no other process has is gone. Can be repeated."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()


def main(folder: str, mutant: str, parent: int) -> int:
    """Becomes a holder, which ends with the process that started it."""
    die_with_parent(parent)
    change = MUTANTS[mutant].in_holder if mutant else None
    if change is not None:
        change()
    return holder_process.main([folder])
