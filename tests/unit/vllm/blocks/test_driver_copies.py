"""The copies by address that tests/gpu makes call the driver as cuda.h has it."""

import numpy as np
import pytest

from device.card import Card
from device.driver_stand_in import driver_library
from vllm_rig.driver_copies import DriverCopies


@pytest.mark.parametrize("any_order", [False, True])
@pytest.mark.parametrize("batched", ["cuMemcpyBatchAsync_v2", "cuMemcpyBatchAsync", ""])
def test_copies_are_made_in_the_streams_order(batched: str, *, any_order: bool) -> None:
    """By one call if the driver has it, and once the stream is waited for."""
    card = Card()
    stream = card.streams.make_stream()
    source, target = np.arange(64, dtype=np.uint8), np.zeros(64, dtype=np.uint8)
    copies = DriverCopies(driver_library(card, batched), stream)
    copies(
        source.ctypes.data + np.array([0, 32], np.int64),
        target.ctypes.data + np.array([16, 0], np.int64),
        np.array([8, 16], np.int64),
        any_order=any_order,
    )
    assert not target.any()
    assert card.calls[-1] == batched or card.calls[-2:] == ["cuMemcpyAsync"] * 2
    card.streams.wait(stream)
    assert target[:16].tolist() == list(range(32, 48))
    assert target[16:24].tolist() == list(range(8))
    assert not target[24:].any()


@pytest.mark.parametrize("batched", ["cuMemcpyBatchAsync_v2", ""])
def test_a_refusal_is_an_error(batched: str) -> None:
    """An error of the driver is raised, so the transfer fails."""
    card = Card()
    copies = DriverCopies(driver_library(card, batched), card.streams.make_stream())
    card.fail = batched or "cuMemcpyAsync"
    number = np.array([source := np.zeros(8, np.uint8).ctypes.data], np.int64)
    with pytest.raises(RuntimeError, match=card.fail):
        copies(number, number, np.array([0], np.int64), any_order=source == 0)
