"""The memory of each tier, on a device that is memory of this process."""

from contextlib import ExitStack, closing
from itertools import count
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from device.card import Card, ServerCuda
from kvstore.assembly import tier_setup
from kvstore.assembly.tier_setup import slab_config, tier_1_source, tier_2, tier_2_node, tier_3
from kvstore.config.loading import load_config
from kvstore.service.page_io.slow_tier import TierState
from kvstore.signals import Signals
from kvstore.storage.cuda.device_memory import CudaDevice
from kvstore.storage.errors import DeviceUnavailable
from kvstore.storage.host.host_memory import HostMemory

SLOT = 64 << 10


@pytest.fixture
def card() -> Card:
    """Provides a device."""
    return Card()


def test_tier_2_is_registered_for_the_device_of_tier_1(card: Card) -> None:
    """Tier-2 memory is registered with tier 1's device from allocation to release."""
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
    """Device memory of tier 1 is allocated at the start in extents, unless it is to grow."""
    monkeypatch.setattr(
        tier_setup, "CudaDevice", lambda number: CudaDevice(number, lambda: ServerCuda(card))
    )
    config = load_config(["--device", "cuda:0", "--tier1-bytes", "16MiB", *flags])
    with ExitStack() as stack:
        tier_1_source(config, stack, stack.enter_context(Signals(())))
        assert [len(each) >> 20 for each in card.memory.values()] == reserved
    assert card.memory == {}


def test_beside_a_tier_1_of_the_host_it_is_not(card: Card) -> None:
    """Beside host memory in tier 1, tier 2 is not registered. Without bytes there is no tier 2."""
    lower = tier_2(load_config(["--tier2-bytes", "8MiB"]), count(1), HostMemory())
    assert lower is not None
    with closing(lower):
        lower.allocate(1, SLOT)
    assert card.calls == []
    assert tier_2(load_config([]), count(1), HostMemory()) is None


def machine(root: Path, has_memory: str) -> Path:
    """Writes the files of a machine whose GPU is on node 1, and returns its root."""
    node = root / "sys/devices/system/node"
    gpu = root / "sys/bus/pci/devices/0000:3b:00.0"
    for folder in (node, gpu):
        folder.mkdir(parents=True)
    (node / "has_memory").write_text(has_memory, encoding="ascii")
    (gpu / "numa_node").write_text("1\n", encoding="ascii")
    return root


@pytest.mark.parametrize(
    ("chosen", "has_memory", "wanted"),
    [
        ("auto", "0-1\n", 1),
        ("off", "0-1\n", None),
        ("0", "0-1\n", 0),
        # One node, or the GPU's without memory of its own.
        ("auto", "0\n", None),
        ("auto", "0,2\n", None),
        ("0", "0\n", 0),
    ],
)
def test_tier_2_is_near_its_device(
    tmp_path: Path, card: Card, chosen: str, has_memory: str, wanted: int | None
) -> None:
    """Tier 2 is on the device's NUMA node if there is a choice, or on the configured node."""
    config = load_config(["--tier2-numa-node", chosen])
    root = machine(tmp_path, has_memory)
    with closing(CudaDevice(0, lambda: ServerCuda(card))) as device, capture_logs() as lines:
        assert tier_2_node(config, device, root) == wanted
    assert lines == []


def test_without_a_device_there_is_nothing_to_be_near(tmp_path: Path) -> None:
    """Without a device tier 2 has no NUMA node, unless one is configured."""
    root = machine(tmp_path, "0-1\n")
    assert tier_2_node(load_config([]), None, root) is None
    assert tier_2_node(load_config(["--tier2-numa-node", "1"]), None, root) == 1


def test_a_node_that_the_machine_lacks_is_refused(tmp_path: Path) -> None:
    """A NUMA node that the machine lacks is refused with a list of the nodes it has."""
    config = load_config(["--tier2-numa-node", "5"])
    with pytest.raises(DeviceUnavailable, match=r"tier2_numa_node is 5.*: 0, 1\. Set one"):
        tier_2_node(config, None, machine(tmp_path, "0-1\n"))


def test_a_device_that_does_not_tell_its_place_has_no_node(tmp_path: Path, card: Card) -> None:
    """A device without a known place is logged, and memory comes from any node."""
    with closing(CudaDevice(0, lambda: ServerCuda(card))) as device, capture_logs() as lines:
        card.fail = "pci_bus_id"
        assert tier_2_node(load_config([]), device, machine(tmp_path, "0-1\n")) is None
    assert [line["event"] for line in lines] == ["numa_node_unusable"]


@pytest.mark.parametrize("wrong", ["-1", "node0", "99999"])
def test_a_node_is_a_number_or_a_word(wrong: str) -> None:
    """A NUMA node that is no number or known word is refused as a setting."""
    with pytest.raises(ValueError, match="a node's number"):
        load_config([f"--tier2-numa-node={wrong}"])


def test_both_tiers_of_host_memory_are_of_the_pages_that_are_set() -> None:
    """Both host tiers use the configured page size, and their bytes are rounded to it."""
    config = load_config(["--tier2-bytes", "9MiB", "--hugepages", "2MiB"])
    with ExitStack() as stack, Signals(()) as signals:
        source = tier_1_source(config, stack, signals)
        lower = tier_2(config, count(1), source)
    assert source.granularity == 2 << 20
    assert lower is not None
    assert lower.budget_bytes == 8 << 20


def test_without_its_settings_there_is_no_tier_3() -> None:
    """Without its settings tier 3 is absent."""
    assert tier_3(load_config([])).state is TierState.ABSENT


@pytest.mark.parametrize(("size", "segment"), [(1 << 20, 63 * 4096), (2 << 30, 256 << 20)])
def test_a_slab_is_cut_into_four_segments_or_more(tmp_path: Path, size: int, segment: int) -> None:
    """A slab has four segments or more, of at most 256 MiB, and a queue of a quarter of tier 1."""
    flags = ["--tier1-bytes", "8MiB", "--tier3-path", str(tmp_path / "slab")]
    config = slab_config(load_config([*flags, "--tier3-bytes", str(size)]))
    assert config is not None
    assert config.segment_bytes == segment
    assert config.queue_bytes == 2 << 20
    assert (size - 4096) // config.segment_bytes >= 4
