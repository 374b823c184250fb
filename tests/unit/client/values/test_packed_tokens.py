"""Token ids as packed bytes."""

from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from kvstore.v1 import prefix_cache_pb2 as pb
from kvstore_client.values.packed_tokens import pack_tokens, sequence_pieces, unpack_tokens

IDS = [1, 2, 3_000_000_000]
PACKED = b"\x01\0\0\0\x02\0\0\0\x00\x5e\xd0\xb2"


@pytest.mark.parametrize(
    "tokens",
    [
        IDS,
        tuple(IDS),
        PACKED,
        bytearray(PACKED),
        memoryview(PACKED),
        array("I", IDS),
        np.array(IDS, dtype=np.uint32),
        np.array(IDS, dtype=np.int64),
        np.array([1, 9, 2, 9, 3_000_000_000], dtype=np.uint32)[::2],
        torch.tensor(IDS).tolist(),
    ],
    ids=lambda tokens: type(tokens).__name__,
)
def test_all_kinds_of_sequences_pack_alike(tokens: Sequence[int]) -> None:
    """Lists, bytes, arrays and strided views of the same ids pack to the same bytes."""
    assert pack_tokens(tokens) == PACKED


def test_packing_is_undone() -> None:
    """Unpacking returns the packed ids. Empty bytes are no ids."""
    assert unpack_tokens(PACKED) == IDS
    assert (pack_tokens([]), unpack_tokens(b"")) == (b"", [])


@pytest.mark.parametrize(
    "tokens",
    [
        b"123",
        [-1],
        [1 << 32],
        ["1"],
        [1.5],
        7,
        np.array([-1]),
        np.array([0.5]),
        np.zeros((2, 2), dtype=np.uint32),
        memoryview(b"12345"),
    ],
)
def test_what_is_no_token_is_refused(tokens: Any) -> None:  # noqa: ANN401  # anything at all
    """Ids out of range, other types, ragged bytes and other dimensions raise ValueError."""
    with pytest.raises(ValueError, match=r"\d|integer"):
        pack_tokens(tokens)


@pytest.mark.parametrize("count", [0, 1, 31, 32, 5_000, 1_000_000])
def test_tokens_behind_a_request_are_in_it(count: int) -> None:
    """A request followed by its token pieces parses to the whole sequence."""
    packed = bytes(range(4)) * count
    for message in (pb.MatchPrefixRequest, pb.AcquirePrefixRequest):
        pieces = sequence_pieces(packed)
        parsed = message.FromString(
            message(pin_id=3, sequence={"position": 8}).SerializeToString() + b"".join(pieces)
        )
        assert parsed == message(pin_id=3, sequence={"position": 8, "tokens": packed})
