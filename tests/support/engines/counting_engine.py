"""An engine without a model, as a process of a fleet: the next token follows from all before.

``python counting_engine.py FD`` speaks the protocol of inference_worker/fleet/protocol.py. It
refuses a model named ``refused``, and ends while it loads a model named ``dies``.
"""

import asyncio
import os
import socket
import sys
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from itertools import count

from inference_worker.engine.async_engine import EngineStats, Piece
from inference_worker.engine.request import FinishReason, Generation, Request, ReusedTokens
from inference_worker.errors import EngineBusyError, RequestTooLongError
from inference_worker.fleet.fleet import NOTHING
from inference_worker.fleet.protocol import Frame, read_frame
from inference_worker.fleet.request_server import EngineServer

LONGEST = 1000
# A prompt that begins so is one too many.
BUSY = 202
TOKEN_SECONDS = 0.002
REUSED = ReusedTokens(1)


def next_token(ids: Sequence[int], request: Request, place: int) -> int:
    """Says what follows from all ids; drawn, also from the seed, and from how many it drew."""
    sampling = request.sampling
    drawn = 0 if sampling.is_greedy else (sampling.seed or os.getpid()) * (place + 1)
    return (sum(ids) * 7 + len(ids) + drawn) % 200


class CountingEngine:
    """Counts instead of computing; a token every few milliseconds."""

    longest = LONGEST
    ready = True

    def __init__(self) -> None:
        self.requests = 0
        self.running = 0

    async def generate(self, request: Request) -> AsyncGenerator[Piece, None]:
        """Yields a token at a time."""
        prompt = list(request.prompt_ids)
        if prompt[0] == BUSY:
            raise EngineBusyError("too many wait")
        if len(prompt) + request.max_tokens > LONGEST:
            raise RequestTooLongError(len(prompt), request.max_tokens, LONGEST)
        self.requests += 1
        self.running += 1
        ids, reason = list(prompt), FinishReason.LENGTH
        try:
            for place in count():
                ids.append(next_token(ids, request, place))
                yield Piece([ids[-1]], None, None, REUSED)
                if ids[-1] in request.stop_ids:
                    reason = FinishReason.STOP
                if reason is FinishReason.STOP or place + 1 == request.max_tokens:
                    break
                await asyncio.sleep(TOKEN_SECONDS)
        finally:
            self.running -= 1
        found = Generation(
            output_ids=ids[len(prompt) :],
            prompt_tokens=len(prompt),
            matched_tokens=0,
            prefilled_tokens=len(prompt),
            matched_pages=[],
        )
        yield Piece([], found, reason, REUSED)

    async def stats(self) -> EngineStats:
        """Says how many requests there were, and are."""
        return replace(NOTHING, requests=self.requests, running=self.running)


async def main(sock: socket.socket) -> None:
    """Takes the steps of an engine process."""
    reader, writer = await asyncio.open_unix_connection(sock=sock)
    told = await read_frame(reader)
    assert told is not None
    match told.fields["model"]:
        case "refused":
            writer.write(Frame({"op": "refused", "message": "no such model"}).pack())
            await writer.drain()
            return
        case "dies":
            sys.exit(3)
        case folder:
            loaded = {"longest": LONGEST, "end_ids": [], "page_bytes": 64}
            writer.write(Frame({"op": "loaded", "folder": folder, **loaded}).pack())
    if await read_frame(reader) is not None:
        writer.write(Frame({"op": "ready"}).pack())
        await EngineServer(CountingEngine(), reader, writer).serve()


if __name__ == "__main__":
    asyncio.run(main(socket.socket(fileno=int(sys.argv[1]))))
