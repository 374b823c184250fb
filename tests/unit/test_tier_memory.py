"""Where each tier's memory comes from, on a device that is memory of this process."""

from contextlib import ExitStack, closing
from itertools import count
from pathlib import Path

import pytest
from cuda_card import Card, ServerCuda

from kvstore import tier_memory
from kvstore.config_loading import load_config
from kvstore.service.disk import DiskState
from kvstore.signals import Signals
from kvstore.storage.cuda_arena import CudaDevice
from kvstore.storage.host_arena import HostMemory
from kvstore.tier_memory import slab_config, tier_1_source, tier_2, tier_3

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


@pytest.mark.parametrize(
    ("flags", "reserved"), [([], [4, 4, 4, 4]), (["--tier1-reserve", "grow"], [])]
)
def test_tier_1_is_allocated_before_the_server_serves(
    card: Card, monkeypatch: pytest.MonkeyPatch, flags: list[str], reserved: list[int]
) -> None:
    """In pieces as large as extents, unless it is to grow."""
    monkeypatch.setattr(
        tier_memory, "CudaDevice", lambda number: CudaDevice(number, lambda: ServerCuda(card))
    )
    config = load_config(["--device", "cuda:0", "--tier1-bytes", "16MiB", *flags])
    with ExitStack() as stack:
        tier_1_source(config, stack, stack.enter_context(Signals(())))
        assert [len(each) >> 20 for each in card.memory.values()] == reserved
    assert card.memory == {}


def test_beside_a_tier_1_of_the_host_it_is_not(card: Card) -> None:
    """There is nobody to register it with; and without bytes there is no tier 2."""
    lower = tier_2(load_config(["--tier2-bytes", "8MiB"]), count(1), HostMemory())
    assert lower is not None
    with closing(lower):
        lower.allocate(1, SLOT)
    assert card.calls == []
    assert tier_2(load_config([]), count(1), HostMemory()) is None


def test_without_its_settings_there_is_no_tier_3() -> None:
    """It is absent, and no alarm."""
    assert tier_3(load_config([])).state is DiskState.ABSENT


@pytest.mark.parametrize(("size", "segment"), [(1 << 20, 63 * 4096), (2 << 30, 256 << 20)])
def test_a_slab_is_cut_into_four_segments_or_more(tmp_path: Path, size: int, segment: int) -> None:
    """None is larger than what is written in large runs, and a quarter of tier 1 is queued."""
    flags = ["--tier1-bytes", "8MiB", "--tier3-path", str(tmp_path / "slab")]
    config = slab_config(load_config([*flags, "--tier3-bytes", str(size)]))
    assert config is not None
    assert config.segment_bytes == segment
    assert config.queue_bytes == 2 << 20
    assert (size - 4096) // config.segment_bytes >= 4
