"""Servers of one folder, one after another."""

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kvstore_client.testing import RunningStore

BENCHMARKS = Path(__file__).parents[2]
# Seconds.
REPLACE_TIMEOUT = 60.0


class Servers:
    """One server at a time; each logs into one file. One thread uses it."""

    def __init__(
        self, folder: Path, arguments: Sequence[str], *, checkpoints: Path, mutant: str = ""
    ) -> None:
        code = (
            # The second server begins as an installed one does: with the bytecode of its modules.
            f"import sys; sys.pycache_prefix = {str(folder / 'bytecode')!r}; "
            f"sys.dont_write_bytecode = False; sys.path.insert(0, {str(BENCHMARKS)!r}); "
            "from support.succession.server import main; "
            f"sys.exit(main({str(checkpoints)!r}, {mutant!r}, {os.getpid()}))"
        )
        self.runtime_dir = folder / "run"
        self.runtime_dir.mkdir(mode=0o700)
        self._arguments = arguments
        self._program = ("-c", code)
        self._store = self._new()
        self._log_read = 0

    def start(self) -> None:
        """Starts the first server, and waits until it serves."""
        self._store.start()

    def begin(self) -> None:
        """Starts another server and does not wait."""
        self._store.begin()

    def kill(self) -> float:
        """Kills the server and waits until it is dead; returns when the signal was sent."""
        sent = time.monotonic()
        self._store.kill()
        return sent

    def replace(self) -> float:
        """Starts another server, which takes this one's place, and waits until it serves.

        Returns when it was started.
        """
        began = time.monotonic()
        self._store.replace(timeout=REPLACE_TIMEOUT)
        return began

    def suspend(self) -> float:
        """Stops all threads of the server; returns when the signal was sent."""
        sent = time.monotonic()
        self._store.suspend()
        return sent

    def resume(self) -> None:
        """Continues the server that was suspended."""
        self._store.resume()

    def begin_beside(self) -> RunningStore:
        """Starts another server beside this one, which the caller kills."""
        other = self._new()
        other.begin()
        return other

    @staticmethod
    def has_ended(store: RunningStore) -> bool:
        """Returns whether a server's process has ended."""
        options = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, store.pid, options) is not None

    def stop(self) -> None:
        """Stops the server, if one runs."""
        self._store.stop()

    def _new(self) -> RunningStore:
        return RunningStore(self.runtime_dir, self._arguments, program=self._program)

    @property
    def log(self) -> str:
        """The log of all servers."""
        return self._store.log

    def news(self) -> list[dict[str, Any]]:
        """Returns the log's lines since the last call."""
        log = self._store.log
        news = log[self._log_read :]
        whole = news[: news.rfind("\n") + 1]
        self._log_read += len(whole)
        return [json.loads(line) for line in whole.splitlines() if line.startswith("{")]
