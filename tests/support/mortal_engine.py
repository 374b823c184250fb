"""An engine process that says one token of each request, and dies. It needs no torch."""

import asyncio
import os
import socket
import sys
from dataclasses import asdict

from inference_worker.engine_settings import LoadedModel
from inference_worker.frames import Frame, read_frame

LOADED = LoadedModel(folder="", longest=100, end_ids=[], page_bytes=1)


async def main(sock: socket.socket) -> None:
    """Speak as inference_worker/engine_messages.py says, up to the first token."""
    reader, writer = await asyncio.open_unix_connection(sock=sock)
    await read_frame(reader)
    writer.write(Frame({"op": "loaded", **asdict(LOADED)}).pack())
    if await read_frame(reader) is None:
        return
    writer.write(Frame({"op": "ready"}).pack())
    while (frame := await read_frame(reader)) is not None and frame.fields["op"] == "generate":
        told = {"op": "tokens", "id": frame.fields["id"], "reused": 0}
        writer.write(Frame(told, [len(frame.token_ids)]).pack())
        await writer.drain()
        os._exit(1)


if __name__ == "__main__":
    asyncio.run(main(socket.socket(fileno=int(sys.argv[1]))))
