"""kvstore-server whose host memory is filled as KVSTORE_BENCH_FILL says; all else is its own code.

``fallocate`` allocates pages only, as the server did before it had threads for it. A number
is the most threads, which then populate the pages however few they are.
"""

import os
import sys
from unittest.mock import patch

import kvstore.__main__ as program

VARIABLE = "KVSTORE_BENCH_FILL"
FALLOCATE = "fallocate"
# Of ENOUGH_THREADS: no machine has so many.
NEVER = 1 << 20


def main() -> int:
    """Serve as kvstore-server does."""
    fill = os.environ[VARIABLE]
    enough, most = (NEVER, 1) if fill == FALLOCATE else (1, int(fill))
    with (
        patch("kvstore.storage.host_mapping.ENOUGH_THREADS", enough),
        patch("kvstore.storage.host_arena.MOST_THREADS", most),
    ):
        return program.main()


if __name__ == "__main__":
    sys.exit(main())
