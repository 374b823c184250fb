"""The number of processors that this process may use."""

import os
from collections.abc import Iterator
from pathlib import Path

from kvstore.storage.cgroups import Cgroup, cgroups, read


def processor_count(root: Path = Path("/")) -> int:
    """Returns the processors of the affinity mask, or fewer if a cgroup's quota allows fewer.

    A quota of 2.5 processors counts as 2: the kernel would throttle a third thread. The result is
    at least 1. Quotas are read below ``root``.
    """
    quotas = (quota for each in cgroups("cpu", root) for quota in _quota(each))
    return max(1, int(min([len(os.sched_getaffinity(0)), *quotas])))


def _quota(cgroup: Cgroup) -> Iterator[float]:
    """Yields how many processors a cgroup may use, if it has a limit."""
    if cgroup.version == 1:
        names = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        words = [read(cgroup.path / name).strip() for name in names]
    else:
        words = read(cgroup.path / "cpu.max").split()
    # Without a limit the quota is "max", or -1 in version 1.
    if all(each.isdigit() for each in words):
        match [int(each) for each in words]:
            case [quota, period] if period:
                yield quota / period
