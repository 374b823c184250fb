"""The memory in a process's page tables."""

from pathlib import Path


def mapped_memfds(name: str) -> frozenset[str]:
    """Returns the inodes of the memfds of a name that this process has mapped."""
    lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    return frozenset(line.split()[4] for line in lines if f"memfd:{name}" in line)


def resident_bytes(name: str, but: frozenset[str] = frozenset()) -> int:
    """Counts the bytes of memfds of a name that this process's page tables have.

    Leaves out memfds with the inodes ``but``, which other tests left mapped.
    """
    count, inside = 0, False
    for line in Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines():
        if "-" in line.split(" ")[0]:
            inside = f"memfd:{name}" in line and line.split()[4] not in but
        elif inside and line.startswith("Rss:"):
            count += int(line.split()[1]) << 10
    return count
