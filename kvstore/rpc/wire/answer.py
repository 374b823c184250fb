"""A response that is written already."""

from collections.abc import Iterable
from functools import lru_cache
from typing import TypeAlias

from google.protobuf.message import Message

from kvstore.core.values.runs import Run
from kvstore.rpc.wire.packed import alike, length_delimited, packed_field, varint, varint_field
from kvstore.v1 import types_pb2

SLOT_INDEXES = types_pb2.PageRun.SLOT_INDEXES_FIELD_NUMBER
GENERATIONS = types_pb2.PageRun.GENERATIONS_FIELD_NUMBER
SLOT_COUNT = types_pb2.PageRun.SLOT_COUNT_FIELD_NUMBER


# A response that is written already: protobuf reads its bytes as the message. Runs of thousands
# of slots are not put into a message number by number, nor parsed only to be serialised again.
Answer: TypeAlias = bytes


def serialized(response: Message | Answer) -> bytes:
    """Returns the bytes of a response."""
    return response if isinstance(response, bytes) else response.SerializeToString()


def runs_field(number: int, runs: Iterable[Run], *, ranges: bool) -> bytes:
    """Returns a repeated field of runs, its number below 16, ``ranges`` as in :func:`run_bytes`."""
    written = b""
    for run in runs:
        written += length_delimited(number, run_bytes(run, ranges=ranges))
    return written


def run_bytes(run: Run, *, ranges: bool) -> bytes:
    """Returns a run as ``PageRun`` is written.

    With ``ranges`` slots that follow each other are named by the first and their number,
    and generations that are all alike by one of them: 20 bytes for 6,249 slots.
    """
    extent_id, tier, indexes, generations = run
    named = _named(extent_id, tier)
    if not ranges or not isinstance(indexes, range) or len(indexes) == 1:
        return named + packed_field(SLOT_INDEXES, indexes) + packed_field(GENERATIONS, generations)
    first = length_delimited(SLOT_INDEXES, varint(indexes.start))
    if alike(generations):
        lives = length_delimited(GENERATIONS, varint(generations[0]))
    else:
        lives = packed_field(GENERATIONS, generations)
    return named + first + lives + varint_field(SLOT_COUNT, len(indexes))


@lru_cache(maxsize=1024)
def _named(extent_id: int, tier: int) -> bytes:
    named = types_pb2.PageRun(extent_id=extent_id)
    # The numbers of the tiers are the same on both sides.
    named.tier = tier  # type: ignore[assignment]  # stubs know members alone
    return named.SerializeToString()
