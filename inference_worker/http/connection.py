"""A request's connection: its body, bounded, and whether its client is still there."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive

from inference_worker.errors import EngineGoneError
from inference_worker.http.drain import Drain
from inference_worker.http.problem import Problem

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
    """Does what a client waits for; whose body was read.

    Where the client goes away meanwhile, or the server ends, the work is cancelled, and
    ``ClientDisconnect`` or ``EngineGoneError`` raised once it has ended.
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
    """Returns when the client is gone."""
    while (await receive())["type"] != "http.disconnect":
        pass
