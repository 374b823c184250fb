"""Server-sent events, each a line of JSON, for as long as the client is there."""

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any, Final

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from inference_worker.http.connection import while_there
from inference_worker.http.drain import Drain
from inference_worker.http.problem import problem_of

DONE: Final = b"data: [DONE]\n\n"


class EventStream(Response):
    """Sends documents as they come, then ``[DONE]``; an error is the last event instead."""

    media_type = "text/event-stream"

    def __init__(self, documents: AsyncGenerator[Mapping[str, Any], None], drain: Drain) -> None:
        """Sends ``documents``, which are closed in the end."""
        self.status_code = 200
        self.background = None
        self._documents = documents
        self._drain = drain
        self.init_headers({"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends all; where the client goes away, close the documents at once."""
        del scope
        with self._drain.running():
            async with aclosing(self._documents):
                head = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
                await send(head)
                try:
                    await while_there(receive, self._drain, self._send_all(send))
                    last = DONE
                except ClientDisconnect:
                    return
                except Exception as error:  # noqa: BLE001 - the client is told, as far as it may be
                    last = event(problem_of(error).document())
                await send({"type": "http.response.body", "body": last})

    async def _send_all(self, send: Send) -> None:
        async for each in self._documents:
            body = {"type": "http.response.body", "body": event(each), "more_body": True}
            await send(body)


def event(document: Mapping[str, Any]) -> bytes:
    """Writes one event."""
    written = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    return f"data: {written}\n\n".encode()
