"""The kernel's flags of an extent's mapping."""

from pathlib import Path


def mapping_flags(extent_id: int) -> set[str]:
    """Returns the kernel's flags of this process's mapping of an extent."""
    lines = iter(Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines())
    for line in lines:
        if f"memfd:kvstore-extent-{extent_id} " in line:
            return set(next(each for each in lines if each.startswith("VmFlags:")).split()[1:])
    return set()
