"""A server process's resources, as the kernel counts them, and the complaints of its log."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

KIB = 1 << 10
# What has no place in the log of a server that is only told nonsense.
COMPLAINTS = (
    "Traceback",
    "request_failed",
    "attach_failed",
    "reaper_failed",
    "health_lost",
    "health_failed",
)


@dataclass(frozen=True)
class Taken:
    """Memory that is the process's own in KiB, descriptors, threads."""

    anonymous_kib: int
    descriptors: int
    threads: int

    @classmethod
    def by(cls, pid: int) -> "Taken":
        """Returns what a process takes now; raises ``OSError`` where it is gone."""
        folder = Path("/proc", str(pid))
        lines = (folder / "status").read_text(encoding="utf-8").splitlines()
        status = dict(line.split(":", 1) for line in lines)
        return cls(
            int(status["RssAnon"].split()[0]),
            sum(1 for _ in (folder / "fd").iterdir()),
            int(status["Threads"]),
        )

    def as_json(self) -> dict[str, Any]:
        """Returns it by name."""
        return asdict(self)


def complaints(log: str) -> list[str]:
    """Returns the lines of a server's log that mean a bug."""
    return [line for line in log.splitlines() if any(each in line for each in COMPLAINTS)]
