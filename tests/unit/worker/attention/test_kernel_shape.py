"""The sizes of tiles, reads and warps follow the heads and their size."""

import pytest

from inference_worker.attention.kernel_shape import (
    KernelShape,
    decode_rows,
    padded_dims,
    prefill_rows,
)

# By (group, dims, bytes of a value): rows of a decode and of a prefill, keys that a decode reads at
# once, warps of both.
SIZES = {
    (4, 128, 2): (16, 128, 32, 4, 8),
    (4, 256, 2): (16, 64, 32, 4, 4),
    (4, 128, 4): (16, 32, 32, 4, 4),
    (4, 64, 4): (16, 64, 32, 4, 4),
    (24, 128, 2): (32, 128, 32, 4, 8),
    (200, 32, 2): (256, 256, 32, 8, 8),
    (1, 1024, 2): (16, 16, 16, 4, 4),
}


@pytest.mark.parametrize(("group", "dims", "value_bytes"), SIZES)
def test_sizes_follow_the_heads(group: int, dims: int, value_bytes: int) -> None:
    """A tile has at least a whole group. Wide heads have fewer rows and fewer keys at once."""
    shape = KernelShape()
    rows = decode_rows(group), prefill_rows(group, dims, value_bytes)
    found = (
        *rows,
        shape.decode.keys_of(dims * value_bytes),
        shape.decode.warps_of(rows[0]),
        shape.prefill.warps_of(rows[1]),
    )
    assert found == SIZES[group, dims, value_bytes]


def test_heads_are_padded_to_what_tensor_cores_take() -> None:
    """Heads are padded to a power of two, at least 16."""
    assert [padded_dims(dim) for dim in (4, 16, 20, 128)] == [16, 16, 32, 128]
