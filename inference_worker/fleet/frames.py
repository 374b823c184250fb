"""Messages between a serving process and its engine processes: JSON, and token ids as bytes."""

import json
import sys
from array import array
from asyncio import IncompleteReadError, StreamReader
from collections.abc import Sequence
from struct import Struct
from typing import Any, Final, NamedTuple

from inference_worker.errors import BadPromptError

# Bytes of the JSON, then of the token ids behind it.
HEAD: Final = Struct("<II")
# More than the longest prompt has; a length beyond it is no frame of ours.
MOST_BYTES: Final = 1 << 28


class Frame(NamedTuple):
    """One message: its fields, and token ids where it is about some."""

    fields: dict[str, Any]
    token_ids: Sequence[int] = ()

    def pack(self) -> bytes:
        """Writes it as it travels; raises ``BadPromptError`` for an id that is no uint32."""
        told = json.dumps(self.fields).encode()
        try:
            ids = array("I", self.token_ids)
        except OverflowError:
            raise BadPromptError("a token id is from 0 to 4294967295") from None
        if sys.byteorder == "big":
            ids.byteswap()
        return HEAD.pack(len(told), len(ids) * ids.itemsize) + told + ids.tobytes()


async def read_frame(reader: StreamReader) -> Frame | None:
    """Reads the next message, or None where the other end is gone, in the middle of one too.

    Raises ``ValueError`` for bytes that are none.
    """
    try:
        told_bytes, id_bytes = HEAD.unpack(await reader.readexactly(HEAD.size))
        if told_bytes + id_bytes > MOST_BYTES:
            msg = f"a frame of {told_bytes} and {id_bytes} bytes"
            raise ValueError(msg)
        told = await reader.readexactly(told_bytes)
        ids = array("I", await reader.readexactly(id_bytes))
    except (IncompleteReadError, ConnectionError):
        return None
    if sys.byteorder == "big":
        ids.byteswap()
    return Frame(json.loads(told), ids)
