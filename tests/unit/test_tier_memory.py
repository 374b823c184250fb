"""Where each tier's memory comes from, on a device that is memory of this process."""

from contextlib import closing
from itertools import count

import pytest
from cuda_card import Card, ServerCuda

from kvstore.config import load_config
from kvstore.storage.cuda_arena import CudaDevice
from kvstore.storage.host_arena import HostMemory
from kvstore.tier_memory import tier_2

SLOT = 64 << 10


@pytest.fixture
def card() -> Card:
    """A device."""
    return Card()


def test_tier_2_is_registered_for_the_device_of_tier_1(card: Card) -> None:
    """From an extent's first moment to its last."""
    config = load_config(["--tier2-bytes", "8MiB", "--tier2-match", "promote"])
    with closing(CudaDevice(0, lambda: ServerCuda(card))) as device:
        lower = tier_2(config, count(1), device)
        assert lower is not None
        with closing(lower):
            extent = lower.allocate(1, SLOT)
            assert list(card.registered.values()) == [extent.shape.size_bytes]
        assert card.registered == {}


def test_beside_a_tier_1_of_the_host_it_is_not(card: Card) -> None:
    """There is nobody to register it with; and without bytes there is no tier 2."""
    lower = tier_2(load_config(["--tier2-bytes", "8MiB"]), count(1), HostMemory())
    assert lower is not None
    with closing(lower):
        lower.allocate(1, SLOT)
    assert card.calls == []
    assert tier_2(load_config([]), count(1), HostMemory()) is None
