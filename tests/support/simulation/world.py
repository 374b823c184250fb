"""The world of one schedule, as its workers, its operator and its trouble see it."""

from collections import Counter
from pathlib import Path
from typing import Protocol

from simulation.kernel import Kernel
from simulation.node import StoreNode
from simulation.pages import Oracle
from simulation.sockets import SimProcess
from simulation.wire import Faults


class World(Protocol):
    """The state that parts of a schedule share. ``busy`` is true while more requests come."""

    kernel: Kernel
    oracle: Oracle
    faults: Faults
    counts: Counter[str]
    folder: Path
    busy: bool

    def count(self, what: str) -> None:
        """Counts something."""

    def store(self) -> StoreNode | None:
        """Returns the store, if one runs."""

    def start_store(self) -> None:
        """Starts a store, unless one runs."""

    def kill_store(self) -> None:
        """Kills the store."""

    def start_worker(self) -> None:
        """Starts a worker."""

    def worker_processes(self) -> list[SimProcess]:
        """Returns the processes of the workers that live."""

    def kill_worker(self, process: SimProcess) -> None:
        """Kills the worker of a process."""
