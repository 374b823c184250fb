"""A response of which the long part is written already."""

from collections.abc import Iterable
from functools import lru_cache

from google.protobuf.message import Message

from kvstore.core.runs import Run
from kvstore.rpc.packed import alike, length_delimited, packed_field, varint_field
from kvstore.v1 import types_pb2

SLOT_INDEXES = types_pb2.PageRun.SLOT_INDEXES_FIELD_NUMBER
GENERATIONS = types_pb2.PageRun.GENERATIONS_FIELD_NUMBER
SLOT_COUNT = types_pb2.PageRun.SLOT_COUNT_FIELD_NUMBER


class Answer:
    """A message, and more of its bytes behind it, which protobuf reads as one message.

    Runs of thousands of slots are not put into a message number by number, nor parsed
    only to be serialised again.
    """

    __slots__ = ("_message", "_more")

    def __init__(self, message: Message, *more: bytes) -> None:
        self._message = message
        self._more = more

    def SerializeToString(self) -> bytes:  # noqa: N802  # as messages have it
        """Return the bytes of all of it."""
        return b"".join((self._message.SerializeToString(), *self._more))


def serialized(response: Message | Answer) -> bytes:
    """Return the bytes of a response."""
    return response.SerializeToString()


def runs_field(number: int, runs: Iterable[Run], *, ranges: bool) -> bytes:
    """Return a repeated field of runs, its number below 16, ``ranges`` as in :func:`run_bytes`."""
    return b"".join([length_delimited(number, run_bytes(run, ranges=ranges)) for run in runs])


def run_bytes(run: Run, *, ranges: bool) -> bytes:
    """Return a run as ``PageRun`` is written.

    With ``ranges`` slots that follow each other are named by the first and their number,
    and generations that are all alike by one of them: 30 bytes for 6,249 slots.
    """
    indexes, generations = run.indexes, run.generations
    count = b""
    if ranges and isinstance(indexes, range) and len(indexes) > 1:
        count = varint_field(SLOT_COUNT, len(indexes))
        indexes = indexes[:1]
        if alike(generations):
            generations = generations[:1]
    return b"".join(
        (
            _named(run.extent_id, run.tier),
            packed_field(SLOT_INDEXES, indexes),
            packed_field(GENERATIONS, generations),
            count,
        )
    )


@lru_cache(maxsize=1024)
def _named(extent_id: int, tier: int) -> bytes:
    named = types_pb2.PageRun(extent_id=extent_id)
    # The numbers of the tiers are the same on both sides.
    named.tier = tier  # type: ignore[assignment]  # stubs know members alone
    return named.SerializeToString()


def inside(number: int, content: bytes) -> bytes:
    """Return more of a submessage, whose field's number is below 16; nothing for nothing."""
    return length_delimited(number, content) if content else b""
