"""The kernel's facts, read from a machine's files."""

import os
from pathlib import Path

from kvstore_ctl.doctor.host_checks import UNLIMITED, HostFacts, MemoryLimit
from stores.machine_files import write_files

V2_MOUNT = "30 24 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
V1_MOUNT = (
    "31 24 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
    "32 24 0:28 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
)
LIMITS = "Limit  Soft Limit  Hard Limit  Units\nMax open files  {}  4096  files\n"


def machine(root: Path, files: dict[str, str]) -> HostFacts:
    """Returns the facts of a machine that has these files."""
    return HostFacts(write_files(root, files))


def test_limits_of_every_cgroup_above_are_found(tmp_path: Path) -> None:
    """All cgroups' limits are found, the process's own first, without reclaimable cache."""
    facts = machine(
        tmp_path,
        {
            "proc/self/mountinfo": V2_MOUNT,
            "proc/42/cgroup": "0::/a/b\n",
            "sys/fs/cgroup/a/memory.max": "9000\n",
            "sys/fs/cgroup/a/memory.current": "1000\n",
            "sys/fs/cgroup/a/memory.stat": "anon 5\ninactive_file 300\n",
            "sys/fs/cgroup/a/b/memory.max": "5000\n",
            "sys/fs/cgroup/a/b/memory.current": "4500\n",
            "sys/fs/cgroup/a/b/memory.events.local": "low 0\noom 4\noom_kill 3\n",
            # Kills in other cgroups below it, such as a container beside this one.
            "sys/fs/cgroup/a/memory.events": "low 0\noom 9\noom_kill 9\n",
        },
    )
    assert facts.memory_limits(42) == [
        MemoryLimit("/sys/fs/cgroup/a/b/memory.max", 5000, 4500, 3),
        MemoryLimit("/sys/fs/cgroup/a/memory.max", 9000, 700, 0),
    ]
    assert facts.memory_limits(43) == []


def test_limits_of_the_first_version_are_found(tmp_path: Path) -> None:
    """The memory controller of cgroup v1 is read, and its word for no limit means none."""
    folder = "sys/fs/cgroup/memory"
    facts = machine(
        tmp_path,
        {
            "proc/self/mountinfo": V1_MOUNT,
            "proc/self/cgroup": "5:cpu,cpuacct:/x\n4:memory:/pod\n0::/\n",
            f"{folder}/pod/memory.limit_in_bytes": "100\n",
            f"{folder}/pod/memory.usage_in_bytes": "60\n",
            f"{folder}/memory.limit_in_bytes": f"{UNLIMITED * 7}\n",
            f"{folder}/memory.usage_in_bytes": "60\n",
        },
    )
    assert facts.memory_limits("self") == [
        MemoryLimit(f"/{folder}/pod/memory.limit_in_bytes", 100, 60, 0)
    ]


def test_descriptors_clocks_and_devices_are_read(tmp_path: Path) -> None:
    """A missing word in a fact's file means no limit, and a missing file means no fact."""
    facts = machine(
        tmp_path,
        {
            "proc/7/limits": LIMITS.format("1024"),
            "proc/8/limits": LIMITS.format("unlimited"),
            "proc/7/fd/0": "",
            "proc/7/fd/5": "",
            "proc/meminfo": "MemTotal:  16 kB\nMemFree: 1 kB\nMemAvailable: 8 kB\n",
            "sys/devices/system/clocksource/clocksource0/current_clocksource": "hpet\n",
            "dev/nvidia1": "",
            "dev/nvidia0": "",
            "dev/nvidiactl": "",
        },
    )
    assert [facts.open_file_limit(pid) for pid in (7, 8, 9)] == [1024, UNLIMITED, None]
    assert [facts.open_file_count(pid) for pid in (7, 9)] == [2, None]
    assert (facts.clock_source(), facts.devices()) == ("hpet", ["nvidia0", "nvidia1"])
    assert facts.memory_bytes() == (16 * 1024, 8 * 1024)
    assert facts.namespace("ipc") is None


def test_this_machine_has_them() -> None:
    """A real machine has each fact."""
    facts = HostFacts()
    total, available = facts.memory_bytes()
    assert 0 < available <= total
    assert facts.namespace("pid", os.getpid()) == facts.namespace("pid")
    assert (facts.open_file_count("self") or 0) < (facts.open_file_limit("self") or 0)
