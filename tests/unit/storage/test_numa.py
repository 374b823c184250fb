"""NUMA nodes: read from files of a machine, and used by this machine's kernel."""

import errno
import mmap
import os
from pathlib import Path

import pytest

from kvstore.storage.extent import ExtentShape
from kvstore.storage.host import numa
from kvstore.storage.host.host_memory import HostExtent
from kvstore.storage.host.memfd import ENOUGH_THREADS, HostTerms

SHAPE = ExtentShape(extent_id=909, arena_id=1, tier=2, slot_count=4, slot_bytes=mmap.PAGESIZE)
# The kernel has NUMA where it shows each mapping's policy.
POLICIES = Path("/proc/self/numa_maps")


def machine(root: Path, has_memory: str = "0-1,3\n") -> Path:
    """Writes the files of a machine with a GPU on node 3, and of one whose node is unknown."""
    node = root / "sys/devices/system/node"
    node.mkdir(parents=True)
    (node / "has_memory").write_text(has_memory, encoding="ascii")
    for bus_id, number in (("0000:3b:00.0", "3\n"), ("10000:5c:00.0", "-1\n")):
        folder = root / "sys/bus/pci/devices" / bus_id
        folder.mkdir(parents=True)
        (folder / "numa_node").write_text(number, encoding="ascii")
    return root


@pytest.mark.parametrize(
    ("text", "wanted"), [("0\n", [0]), ("0-1,3\n", [0, 1, 3]), ("2,4-6\n", [2, 4, 5, 6]), ("", [])]
)
def test_nodes_with_memory_are_ranges_and_numbers(
    tmp_path: Path, text: str, wanted: list[int]
) -> None:
    """As the kernel writes lists."""
    assert numa.nodes(machine(tmp_path, text)) == wanted


def test_a_kernel_without_numa_names_no_nodes(tmp_path: Path) -> None:
    """The file does not exist."""
    assert numa.nodes(tmp_path) == []


@pytest.mark.parametrize(
    ("bus_id", "wanted"),
    [
        ("0000:3B:00.0", 3),
        ("00000000:3B:00.0", 3),
        ("10000:5C:00.0", None),
        ("0000:3C:00.0", None),
    ],
)
def test_a_device_s_node_is_found_by_its_place(
    tmp_path: Path, bus_id: str, wanted: int | None
) -> None:
    """With CUDA's capitals and its digits of the domain; None if the kernel knows no node."""
    assert numa.node_of_pci(bus_id, machine(tmp_path)) == wanted


def test_an_extent_s_pages_prefer_a_node() -> None:
    """The kernel names the policy and the node of every page; without NUMA it refuses the call."""
    if not POLICIES.exists():
        with pytest.raises(OSError, match=os.strerror(errno.ENOSYS)):
            numa.try_node(0)
        return
    node = numa.nodes()[-1]
    numa.try_node(node)
    extent = HostExtent.allocate(SHAPE, HostTerms(numa_node=node, threads=ENOUGH_THREADS))
    lines = POLICIES.read_text(encoding="ascii").splitlines()
    [words] = [line.split() for line in lines if "memfd:kvstore-extent-909" in line]
    extent.close()
    assert words[1] in (f"prefer:{node}", f"prefer=relative:{node}")
    assert f"N{node}={SHAPE.slot_count}" in words


def test_a_node_that_there_is_not_is_refused() -> None:
    """By the kernel, or before the call if the number is beyond the mask."""
    for node in (1023, 4000):
        with pytest.raises(OSError, match=r"Invalid argument|not implemented"):
            numa.try_node(node)
