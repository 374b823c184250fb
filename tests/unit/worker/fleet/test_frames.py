"""A frame arrives whole or not at all."""

import asyncio
from asyncio import StreamReader

import pytest

from inference_worker.errors import BadPromptError
from inference_worker.fleet.protocol import HEAD, MOST_BYTES, Frame, read_frame


def read_all(told: bytes) -> list[Frame | None]:
    """Reads frames from bytes, including the first None."""

    async def run() -> list[Frame | None]:
        reader = StreamReader()
        reader.feed_data(told)
        reader.feed_eof()
        found: list[Frame | None] = []
        while not found or found[-1] is not None:
            found.append(await read_frame(reader))
        return found

    return asyncio.run(run())


def test_frames_come_as_they_were_sent() -> None:
    """Fields and token ids arrive unchanged, frame by frame."""
    first, second = Frame({"op": "é"}, [0, 1 << 31, (1 << 32) - 1]), Frame({"id": 7})
    found = read_all(first.pack() + second.pack())
    assert [None if each is None else (each.fields, list(each.token_ids)) for each in found] == [
        ({"op": "é"}, [0, 1 << 31, (1 << 32) - 1]),
        ({"id": 7}, []),
        None,
    ]


def test_a_frame_that_was_cut_off_is_none() -> None:
    """A frame that is cut off by its sender's death is not delivered."""
    told = Frame({"op": "tokens"}, [1, 2]).pack()
    assert all(read_all(told[:end]) == [None] for end in range(len(told)))


def test_what_is_no_frame_is_refused() -> None:
    """A length above the limit is refused, and an invalid token id is not sent."""
    with pytest.raises(ValueError, match="bytes"):
        read_all(HEAD.pack(MOST_BYTES, 1))
    for wrong in (1 << 32, -1):
        with pytest.raises(BadPromptError, match="token id"):
            Frame({}, [wrong]).pack()
