"""kvstore-server whose threads stand still for as long as a test wants.

In the folder that ``KVSTORE_STUCK`` names, a FIFO ``owner`` has GetStats hold the
store's mutex until somebody opens it for writing; a FIFO ``calls`` has
each GetStats keep its thread for as long, which is the only one for calls. It is
judged after SILENCE seconds.
"""

import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from unittest.mock import patch

import kvstore.server as program
from kvstore.core.stats import Stats
from kvstore.core.values.requests import Identity
from kvstore.rpc.fair_queue import CallThreads
from kvstore.rpc.health.watchdog import Health
from kvstore.rpc.server import MAX_CALLS
from kvstore.service.administration import Administration

# Longer than any thread is silent by itself, which is a second.
SILENCE = 1.5
FOLDER = "KVSTORE_STUCK"
PROGRAM = (str(Path(__file__)),)


def main() -> int:
    """Runs kvstore-server."""
    folder, stats = Path(os.environ[FOLDER]), Administration.stats

    def stuck_stats(admin: Administration, identity: Identity) -> Stats:
        _stand_still(folder / "calls")
        with admin._mutex:
            _stand_still(folder / "owner")
        return stats(admin, identity)

    judged_soon: Callable[..., Health] = partial(Health, stale_after=SILENCE)
    one_thread = partial(CallThreads, 1, MAX_CALLS)
    with (
        patch.object(Administration, "stats", stuck_stats),
        patch.object(program, "Health", judged_soon),
        patch.object(program, "call_threads", one_thread),
        patch.object(program, "STOP_PATIENCE", 1.0),
    ):
        return program.run()


def _stand_still(fifo: Path) -> None:
    if fifo.exists():
        fifo.open("rb").close()


if __name__ == "__main__":
    sys.exit(main())
