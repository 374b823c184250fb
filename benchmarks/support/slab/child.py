"""A process that writes and removes pages of a slab until it is killed, and reports.

Its arguments are PATH SIZE_BYTES FIRST PARENT. Each line of stdout is a letter and a page's number.
``a``: the page is acknowledged. ``r``: it is about to be removed. ``d``: its removal is durable.
"""

import os
import sys
from collections import deque
from pathlib import Path
from random import Random
from threading import Lock

import structlog

from kvstore.storage.slab.slab import Slab
from support.child import die_with_parent
from support.slab.kills import PAGE_BYTES, settings
from support.slab.pages import CHAIN, Writer, bytes_of, key_of, memory, page_of

QUEUE_PAGES = 256
# One of twenty sequences loses its last page again.
REMOVED = 0.05


class Teller:
    """Writes lines that survive a kill, because a pipe keeps its data."""

    def __init__(self) -> None:
        self._mutex = Lock()

    def tell(self, letter: str, number: int) -> None:
        """Reports an event of a page."""
        with self._mutex:
            os.write(sys.stdout.fileno(), f"{letter}{number}\n".encode())


def run(slab: Slab, first: int) -> None:
    """Writes pages from ``first`` on, without end."""
    teller = Teller()
    writer = Writer(slab, QUEUE_PAGES)
    rng = Random(first)
    buffers = deque(memory(PAGE_BYTES) for _ in range(4 * QUEUE_PAGES))
    number = first
    while True:
        content = buffers[0]
        buffers.rotate(-1)
        content[:] = bytes_of(number, PAGE_BYTES)

        def done(committed: bool, number: int = number) -> None:  # noqa: FBT001
            if committed:
                teller.tell("a", number)

        writer.write(page_of(number), content, done)
        if number % CHAIN == CHAIN - 1 and rng.random() < REMOVED:
            teller.tell("r", number)

            def gone(durable: bool, number: int = number) -> None:  # noqa: FBT001
                if durable:
                    teller.tell("d", number)

            slab.remove([key_of(number)], gone)
        number += 1


if __name__ == "__main__":
    die_with_parent(int(sys.argv[4]))
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    run(Slab(settings(Path(sys.argv[1]), int(sys.argv[2]))), int(sys.argv[3]))
