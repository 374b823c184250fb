"""An engine process that says one token of each request, and dies. It needs no torch.

Its model's name is how many requests it has no room for before.
"""

import asyncio
import os
import socket
import sys
from dataclasses import asdict

from inference_worker.errors import EngineBusyError
from inference_worker.fleet.protocol import Frame, LoadedModel, failure_frame, read_frame

LOADED = LoadedModel(folder="", longest=100, end_ids=[], page_bytes=1)


async def main(sock: socket.socket) -> None:
    """Speaks as inference_worker/fleet/protocol.py says, up to the first token."""
    reader, writer = await asyncio.open_unix_connection(sock=sock)
    told = await read_frame(reader)
    assert told is not None
    busy = int(told.fields["model"])
    writer.write(Frame({"op": "loaded", **asdict(LOADED)}).pack())
    if await read_frame(reader) is None:
        return
    writer.write(Frame({"op": "ready"}).pack())
    while (frame := await read_frame(reader)) is not None and frame.fields["op"] != "stop":
        if frame.fields["op"] != "generate":
            continue
        number = frame.fields["id"]
        if busy:
            busy -= 1
            writer.write(failure_frame(number, EngineBusyError("full")).pack())
            continue
        tokens = {"op": "tokens", "id": number, "reused": [0, 0, 0]}
        writer.write(Frame(tokens, [len(frame.token_ids)]).pack())
        await writer.drain()
        os._exit(1)


if __name__ == "__main__":
    asyncio.run(main(socket.socket(fileno=int(sys.argv[1]))))
