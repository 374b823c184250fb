"""The memory of a machine, as its files give it."""

from pathlib import Path

import pytest

from kvstore.storage.errors import NotEnoughMemory
from kvstore.storage.host.machine_limits import Bound, bounds, require
from stores.machine_files import write_files

MEMINFO = "MemTotal:       16000 kB\nMemFree:         100 kB\nMemAvailable:   8000 kB\n"
V2_MOUNT = "30 24 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
V1_MOUNT = (
    "31 24 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
    "32 24 0:28 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
)


def machine(root: Path, files: dict[str, str]) -> Path:
    """Writes files below ``root``, with a meminfo, and returns it."""
    return write_files(root, {"proc/meminfo": MEMINFO, **files})


def test_a_machine_without_cgroups_has_what_the_kernel_estimates(tmp_path: Path) -> None:
    """MemAvailable, not MemFree, is what can be had."""
    assert bounds(machine(tmp_path, {})) == [Bound(8000 * 1024, "MemAvailable")]


def test_every_limited_cgroup_above_us_is_a_bound(tmp_path: Path) -> None:
    """In cgroup v2 our own limit and a parent's count, and an unlimited one does not."""
    root = machine(
        tmp_path,
        {
            "proc/self/mountinfo": V2_MOUNT,
            "proc/self/cgroup": "0::/a/b/c\n",
            "sys/fs/cgroup/a/memory.max": "9000\n",
            "sys/fs/cgroup/a/memory.current": "1000\n",
            "sys/fs/cgroup/a/memory.stat": "anon 5\ninactive_file 300\nfile 600\n",
            "sys/fs/cgroup/a/b/memory.max": "max\n",
            "sys/fs/cgroup/a/b/memory.current": "1000\n",
            "sys/fs/cgroup/a/b/c/memory.max": "5000\n",
            "sys/fs/cgroup/a/b/c/memory.current": "4500\n",
        },
    )
    assert bounds(root)[1:] == [
        Bound(500, "/sys/fs/cgroup/a/b/c/memory.max"),
        Bound(8300, "/sys/fs/cgroup/a/memory.max"),
    ]


def test_the_memory_controller_of_cgroup_v1_is_a_bound(tmp_path: Path) -> None:
    """The limit is that of the cgroup v1 hierarchy with the memory controller."""
    root = machine(
        tmp_path,
        {
            "proc/self/mountinfo": V1_MOUNT,
            "proc/self/cgroup": "5:cpu,cpuacct:/other\n4:memory:/pod\n0::/\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": "77\n",
            "sys/fs/cgroup/memory/pod/memory.limit_in_bytes": "4096\n",
            "sys/fs/cgroup/memory/pod/memory.usage_in_bytes": "5000\n",
            "sys/fs/cgroup/memory/pod/memory.stat": "inactive_file 9\ntotal_inactive_file 1000\n",
        },
    )
    limit = "/sys/fs/cgroup/memory/pod/memory.limit_in_bytes"
    assert bounds(root)[1:] == [Bound(96, limit)]


def test_a_cgroup_that_uses_more_than_its_limit_has_nothing(tmp_path: Path) -> None:
    """The available memory is never below zero."""
    root = machine(
        tmp_path,
        {
            "proc/self/mountinfo": V2_MOUNT,
            "proc/self/cgroup": "0::/\n",
            "sys/fs/cgroup/memory.max": "100\n",
            "sys/fs/cgroup/memory.current": "150\n",
        },
    )
    assert bounds(root)[1:] == [Bound(0, "/sys/fs/cgroup/memory.max")]


@pytest.mark.parametrize("own", ["/docker/abc", "/elsewhere"])
def test_a_container_finds_its_limit_at_the_mount(tmp_path: Path, own: str) -> None:
    """The top of the mount counts if it shows our cgroup alone, or our path is not below it."""
    root = machine(
        tmp_path,
        {
            "proc/self/mountinfo": V2_MOUNT.replace("0:26 / ", "0:26 /docker/abc "),
            "proc/self/cgroup": f"0::{own}\n",
            "sys/fs/cgroup/memory.max": "100\n",
            "sys/fs/cgroup/memory.current": "40\n",
        },
    )
    assert bounds(root)[1:] == [Bound(60, "/sys/fs/cgroup/memory.max")]


def test_what_does_not_fit_is_refused_with_both_numbers(tmp_path: Path) -> None:
    """A requirement beyond a bound names what was wanted, what there is, and who says so."""
    root = machine(tmp_path, {})
    require(8000 * 1024, root)
    with pytest.raises(NotEnoughMemory, match=r"MemAvailable: 8192001 .* 8192000") as refused:
        require(8000 * 1024 + 1, root)
    assert (refused.value.requested_bytes, refused.value.available_bytes) == (8192001, 8192000)


def test_this_machine_has_memory() -> None:
    """The files of the machine that runs this are understood."""
    found = bounds()
    assert found[0].source == "MemAvailable"
    assert all(bound.available_bytes > 0 for bound in found)
