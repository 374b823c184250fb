"""The number of processors that a process may use, read from files of a machine."""

import os
from pathlib import Path

import pytest

from kvstore.storage.host.machine_limits import processor_count
from stores.machine_files import write_files

ALL = len(os.sched_getaffinity(0))
V2_MOUNT = "30 24 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
V1_MOUNT = "31 24 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"


def test_without_a_quota_it_is_the_affinity_mask(tmp_path: Path) -> None:
    """A container without a limit may use all that its mask has."""
    assert processor_count(tmp_path) == ALL
    files = {"proc/self/mountinfo": V2_MOUNT, "proc/self/cgroup": "0::/\n"}
    files["sys/fs/cgroup/cpu.max"] = "max 100000\n"
    assert processor_count(write_files(tmp_path, files)) == ALL


def test_an_affinity_mask_of_one_is_one(tmp_path: Path) -> None:
    """A process that is bound to one processor uses one."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        assert processor_count(tmp_path) == 1
    finally:
        os.sched_setaffinity(0, before)


@pytest.mark.parametrize(("quota", "wanted"), [("150000 100000", 1), ("50000 100000", 1)])
def test_a_quota_is_rounded_down_to_one_at_least(tmp_path: Path, quota: str, wanted: int) -> None:
    """More threads than the quota's processors would be throttled, and requests with them."""
    files = {"proc/self/mountinfo": V2_MOUNT, "proc/self/cgroup": "0::/pod/store\n"}
    files["sys/fs/cgroup/pod/cpu.max"] = quota
    assert processor_count(write_files(tmp_path, files)) == wanted


def test_a_quota_of_version_1_counts_and_minus_one_is_none(tmp_path: Path) -> None:
    """Each cgroup of the hierarchy may have one."""
    files = {"proc/self/mountinfo": V1_MOUNT, "proc/self/cgroup": "4:cpu,cpuacct:/pod\n"}
    files |= {f"sys/fs/cgroup/cpu/cpu.cfs_{each}_us": "-1" for each in ("quota", "period")}
    assert processor_count(write_files(tmp_path, files)) == ALL
    files["sys/fs/cgroup/cpu/pod/cpu.cfs_quota_us"] = "100000\n"
    files["sys/fs/cgroup/cpu/pod/cpu.cfs_period_us"] = "100000\n"
    assert processor_count(write_files(tmp_path, files)) == 1
