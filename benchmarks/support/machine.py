"""Facts of the machine on which a figure was measured."""

import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

TICK_SECONDS = 1.0 / os.sysconf("SC_CLK_TCK")
# Fields of /proc/PID/stat after the process's name: user and system time, in ticks.
CPU_FIELDS = slice(11, 13)


def machine_facts() -> dict[str, Any]:
    """Returns the facts that do not change while a benchmark runs."""
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "python": platform.python_version(),
        **{name: version(name) for name in ("grpcio", "protobuf")},
    }


def load_average() -> float:
    """Returns the load average of the last minute, including this benchmark's own work."""
    return round(os.getloadavg()[0], 2)


def cpu_seconds(pid: int) -> float:
    """Returns the processor time that a process has used."""
    stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii")
    ticks = stat.rpartition(")")[2].split()[CPU_FIELDS]
    return sum(map(int, ticks)) * TICK_SECONDS


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
