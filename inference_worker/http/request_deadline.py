"""A connection that sends no request in time is closed: many of them would shut others out."""

import asyncio
from typing import Final

from uvicorn.protocols.http.h11_impl import H11Protocol

# From a connection's begin, or the answer before, to the end of a request's head.
HEAD_SECONDS: Final = 30.0


class RequestDeadline(H11Protocol):
    """uvicorn's protocol, which by itself waits for a first request, or a head's end, for ever."""

    _closing: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begins to wait for a request."""
        super().connection_made(transport)
        self._begin()

    def on_response_complete(self) -> None:
        """Begins to wait for the next one."""
        super().on_response_complete()
        self._begin()

    def connection_lost(self, exc: Exception | None) -> None:
        """Waits no more."""
        if self._closing is not None:
            self._closing.cancel()
        super().connection_lost(exc)

    def _begin(self) -> None:
        if self._closing is not None:
            self._closing.cancel()
        self._closing = self.loop.call_later(HEAD_SECONDS, self._close_unasked)

    def _close_unasked(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()
