"""kvstore-server that kills itself once, in an insert whose answer is lost.

If the file that ``KVSTORE_LOST_ANSWER`` names is there, it has the word "before" or "after": the
insert has no effect yet, or all of it. The server then writes the name of the insert's thread there
instead, and dies by SIGKILL.
"""

import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any
from unittest.mock import patch

import kvstore.server as program
from kvstore.service.store import KVStore

FILE, BEFORE, AFTER = "KVSTORE_LOST_ANSWER", "before", "after"
PROGRAM = (str(Path(__file__)),)


def main() -> int:
    """Runs kvstore-server."""
    file, insert = Path(os.environ[FILE]), KVStore.insert

    def insert_and_die(store: KVStore, *arguments: Any, **named: Any) -> Any:  # noqa: ANN401 - as the store's
        when = file.read_text(encoding="utf-8") if file.exists() else ""
        if when == BEFORE:
            _die(file)
        inserted = insert(store, *arguments, **named)
        if when == AFTER:
            _die(file)
        return inserted

    with patch.object(KVStore, "insert", insert_and_die):
        return program.run()


def _die(file: Path) -> None:
    file.write_text(threading.current_thread().name, encoding="utf-8")
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())
