"""Tiles, reads and warps follow the heads and their size."""

import pytest

from inference_worker.kernel_shape import KernelShape, decode_rows, padded_dims, prefill_rows

# Rows of a decode and a prefill, keys that a decode reads at once, warps of both.
SIZES = {
    (4, 256, 2): (16, 128, 64, 8, 8),
    (4, 512, 2): (16, 64, 32, 8, 4),
    (4, 512, 4): (16, 32, 32, 8, 4),
    (24, 256, 2): (32, 128, 64, 8, 8),
    (200, 64, 2): (256, 256, 64, 8, 8),
    (1, 2048, 4): (16, 16, 16, 8, 4),
}


@pytest.mark.parametrize(("group", "head_bytes", "value_bytes"), SIZES)
def test_sizes_follow_the_heads(group: int, head_bytes: int, value_bytes: int) -> None:
    """A tile has a whole group; wide heads have fewer rows and keys, float32 half the rows."""
    shape = KernelShape()
    rows = decode_rows(group), prefill_rows(group, head_bytes, value_bytes)
    found = (
        *rows,
        shape.decode.keys_of(head_bytes),
        shape.decode.warps_of(rows[0]),
        shape.prefill.warps_of(rows[1]),
    )
    assert found == SIZES[group, head_bytes, value_bytes]


def test_heads_are_padded_to_what_tensor_cores_take() -> None:
    """A power of two, 16 at least."""
    assert [padded_dims(dim) for dim in (4, 16, 20, 128)] == [16, 16, 32, 128]
