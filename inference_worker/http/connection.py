"""A request's connection: its body, its events, its client's leave, and the server's end."""

import asyncio
import json
from collections.abc import AsyncGenerator, Coroutine, Iterator, Mapping
from contextlib import aclosing, contextmanager, suppress
from typing import Any, Final, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from inference_worker.errors import EngineGoneError
from inference_worker.http.problem import Problem, problem_of

# Seconds for clients to read why their answers ended; a client that does not read delays no end.
END_SECONDS: Final = 5.0


class Drain:
    """Counts running requests, and records that the server ends. One event loop uses it."""

    def __init__(self) -> None:
        """Starts without requests."""
        self.draining = False
        # Set when running requests must end now.
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
        """Refuses new requests; returns when none runs.

        After ``grace`` seconds it ends the running requests, and sends their clients an error.
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
        # A stream is counted again when its answer begins.
        while self._running:
            await self._idle.wait()


Result = TypeVar("Result")


async def read_body(request: Request, max_bytes: int, seconds: float) -> bytes:
    """Reads a body of at most ``max_bytes`` within ``seconds``; raises :class:`Problem`."""
    too_large = Problem(413, f"the body has more than {max_bytes} bytes", code="request_too_large")
    told = request.headers.get("content-length", "")
    if told.isascii() and told.isdigit() and int(told) > max_bytes:
        raise too_large
    content = bytearray()
    try:
        async with asyncio.timeout(seconds):
            async for chunk in request.stream():
                content += chunk
                if len(content) > max_bytes:
                    raise too_large
    except TimeoutError:
        message = f"the body did not come within {seconds:g} seconds"
        raise Problem(408, message, code="request_timeout") from None
    return bytes(content)


async def while_there(receive: Receive, drain: Drain, work: Coroutine[Any, Any, Result]) -> Result:
    """Awaits ``work`` for a client whose body was read.

    Cancels it if the client disconnects or the server ends. Raises ``ClientDisconnect`` or
    ``EngineGoneError`` once the work has ended.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_gone(receive))
    over = asyncio.ensure_future(drain.over.wait())
    try:
        await asyncio.wait((task, gone, over), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
    finally:
        for each in (task, gone, over):
            each.cancel()
        await asyncio.gather(task, gone, over, return_exceptions=True)
    if over.done() and not over.cancelled():
        raise EngineGoneError("the server ends")
    raise ClientDisconnect


async def _gone(receive: Receive) -> None:
    """Returns when the client has disconnected."""
    while (await receive())["type"] != "http.disconnect":
        pass


DONE: Final = b"data: [DONE]\n\n"


class EventStream(Response):
    """Sends documents as server-sent events, then ``[DONE]``; an error is the last event."""

    media_type = "text/event-stream"

    def __init__(
        self,
        documents: AsyncGenerator[Mapping[str, Any], None],
        drain: Drain,
        headers: Mapping[str, str],
    ) -> None:
        """Sends ``documents`` after ``headers``, and closes them at the end."""
        self.status_code = 200
        self.background = None
        self._documents = documents
        self._drain = drain
        self.init_headers({"Cache-Control": "no-cache", "X-Accel-Buffering": "no", **headers})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends all documents; closes them at once if the client disconnects."""
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
                except Exception as error:  # noqa: BLE001 - the client receives it as an event
                    last = event(problem_of(error).document())
                await send({"type": "http.response.body", "body": last})

    async def _send_all(self, send: Send) -> None:
        async for each in self._documents:
            body = {"type": "http.response.body", "body": event(each), "more_body": True}
            await send(body)


def event(document: Mapping[str, Any]) -> bytes:
    """Returns one event's bytes."""
    written = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    return f"data: {written}\n\n".encode()
