"""Processor time and page faults of vLLM's processes, and of all other work on the machine."""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from support.machine import TICK_SECONDS

PROC = Path("/proc")
# Fields of /proc/PID/stat after the process's name.
PARENT, SESSION, MINOR_FAULTS, USER_TICKS, SYSTEM_TICKS = 1, 3, 7, 11, 12
# Fields of the first line of /proc/stat in which no program ran: idle, and waiting for a disk.
IDLE_FIELDS = (3, 4)
# The first fields of that line; later ones count guests a second time.
TIME_FIELDS = 8
ENGINE_CORE, WORKER = "VLLM::EngineCore", "VLLM::Worker"


class ProcessStat(NamedTuple):
    """A process's use of the machine until now. ``title`` is its command line."""

    pid: int
    parent: int
    session: int
    minor_faults: int
    cpu_seconds: float

    @property
    def title(self) -> str:
        """Its command line; empty if the process has ended."""
        try:
            line = (PROC / str(self.pid) / "cmdline").read_bytes()
        except OSError:
            return ""
        return line.replace(b"\0", b" ").decode(errors="replace").strip()


def processes() -> Iterator[ProcessStat]:
    """Yields all processes of the machine that this one may see."""
    for folder in PROC.iterdir():
        if folder.name.isdecimal():
            try:
                stat = (folder / "stat").read_text(encoding="utf-8", errors="replace")
            except OSError:
                continue  # it has just ended
            fields = stat.rpartition(")")[2].split()
            ticks = int(fields[USER_TICKS]) + int(fields[SYSTEM_TICKS])
            yield ProcessStat(
                int(folder.name),
                int(fields[PARENT]),
                int(fields[SESSION]),
                int(fields[MINOR_FAULTS]),
                ticks * TICK_SECONDS,
            )


class ServerUse(NamedTuple):
    """The use of the machine by one vLLM server: EngineCore's, and its workers' page faults."""

    engine_core_seconds: float = 0.0
    engine_core_faults: int = 0
    worker_faults: int = 0

    @classmethod
    def of(cls, session: int) -> "ServerUse":
        """Returns the use until now. All processes of a server are in one session."""
        found = cls()
        for each in processes():
            if each.session != session:
                continue
            title = each.title
            if title.startswith(ENGINE_CORE):
                found = found._replace(
                    engine_core_seconds=found.engine_core_seconds + each.cpu_seconds,
                    engine_core_faults=found.engine_core_faults + each.minor_faults,
                )
            elif title.startswith(WORKER):
                found = found._replace(worker_faults=found.worker_faults + each.minor_faults)
        return found

    def since(self, before: "ServerUse") -> "ServerUse":
        """Returns the use since then."""
        return ServerUse(
            self.engine_core_seconds - before.engine_core_seconds,
            self.engine_core_faults - before.engine_core_faults,
            self.worker_faults - before.worker_faults,
        )


class OtherWork:
    """The processor time of everything but this process and its descendants, from now on.

    Includes time in which the host of a virtual machine ran something else.
    """

    def __init__(self) -> None:
        self._begin = time.monotonic()
        self._seconds = busy_seconds() - own_seconds()

    def cores(self) -> float:
        """Returns the number of cores that other work took since the beginning."""
        seconds = busy_seconds() - own_seconds() - self._seconds
        return max(0.0, seconds / (time.monotonic() - self._begin))


def busy_seconds() -> float:
    """Returns the time that all processors were busy since the machine started."""
    line = (PROC / "stat").read_text(encoding="ascii").partition("\n")[0]
    ticks = [int(each) for each in line.split()[1 : 1 + TIME_FIELDS]]
    return (sum(ticks) - sum(ticks[each] for each in IDLE_FIELDS)) * TICK_SECONDS


def own_seconds() -> float:
    """Returns the time of this process and of its living descendants."""
    stats = {each.pid: each for each in processes()}
    own, older = {os.getpid()}, set[int]()
    while own != older:
        older = set(own)
        own |= {each.pid for each in stats.values() if each.parent in older}
    return sum(stats[pid].cpu_seconds for pid in own if pid in stats)
