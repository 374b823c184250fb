"""kvstore-server with its host memory filled as KVSTORE_BENCH_FILL says; all else is unchanged.

``fallocate`` only allocates pages, as the server did before it used threads. A number is the most
threads, which then populate the pages, even if they are few.
"""

import os
import sys
from unittest.mock import patch

import kvstore.server as program

VARIABLE = "KVSTORE_BENCH_FILL"
FALLOCATE = "fallocate"
# A value for ENOUGH_THREADS: more threads than any machine has.
NEVER = 1 << 20


def main() -> int:
    """Serves as kvstore-server does."""
    fill = os.environ[VARIABLE]
    enough, most = (NEVER, 1) if fill == FALLOCATE else (1, int(fill))
    with (
        patch("kvstore.storage.host.memfd.ENOUGH_THREADS", enough),
        patch("kvstore.storage.host.host_memory.MOST_THREADS", most),
    ):
        return program.run()


if __name__ == "__main__":
    sys.exit(main())
