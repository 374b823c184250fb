"""The end of a server: what runs may finish, nothing new begins."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

# For clients to read why their answers ended: one that reads nothing keeps nobody.
END_SECONDS: Final = 5.0


class Drain:
    """Counts the requests that run, and knows whether the server is to end. One event loop's."""

    def __init__(self) -> None:
        """Serve."""
        self.draining = False
        # Set when what runs has to end now.
        self.over = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._running = 0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Counts a request while it runs."""
        self._running += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._running -= 1
            if not self._running:
                self._idle.set()

    async def drain(self, grace: float) -> None:
        """Begins nothing new; returns when nothing runs.

        What runs after ``grace`` seconds is ended, and its clients are told, where they read.
        """
        self.draining = True
        try:
            async with asyncio.timeout(grace):
                await self._wait_idle()
        except TimeoutError:
            self.over.set()
            with suppress(TimeoutError):
                async with asyncio.timeout(END_SECONDS):
                    await self._wait_idle()

    async def _wait_idle(self) -> None:
        # A stream is counted anew as its answer begins.
        while self._running:
            await self._idle.wait()
