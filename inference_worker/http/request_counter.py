"""Counts answers by route and status."""

from typing import Final

from prometheus_client import Counter
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

# As nginx has it: the client went away before its answer, which nobody reads.
GONE_STATUS: Final = 499
# What is answered, outside this layer, to what nobody foresaw.
FAILED_STATUS: Final = 500
ROUTES: Final = frozenset({"/v1/chat/completions", "/v1/completions", "/v1/models", "/health"})
ROUTES_BELOW: Final = "/v1/models/"


class RequestCounter:
    """A layer around the application; of ``/metrics`` itself nothing is counted."""

    def __init__(self, app: ASGIApp, requests: Counter) -> None:
        """Count into ``requests``, by route and status."""
        self._app = app
        self._requests = requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Count when all was sent."""
        if scope["type"] != "http" or scope["path"] == "/metrics":
            await self._app(scope, receive, send)
            return
        status = FAILED_STATUS

        async def look(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, look)
        finally:
            self._requests.labels(route_of(scope["path"]), status).inc()


def route_of(path: str) -> str:
    """Gives a path's route; paths that nobody serves are one."""
    if path.startswith(ROUTES_BELOW):
        return f"{ROUTES_BELOW}{{model}}"
    return path if path in ROUTES else "other"


async def answer_nobody(request: Request, error: Exception) -> Response:
    """Answers a client that is gone."""
    del request, error
    return Response(status_code=GONE_STATUS)
