"""Repeated health probes of a store, as by a supervisor."""

from pathlib import Path
from threading import Event, Thread
from typing import NamedTuple, Self

import grpc

from kvstore_client.calls.health import health_of
from kvstore_client.runtime_dir import RuntimeDir
from support.stall.load import now

# Seconds: the deadline of deploy/healthcheck.py, and the time between two probes.
DEADLINE = 2.0
INTERVAL = 0.1


class Look(NamedTuple):
    """One probe: its begin and end, and the answer or the status code of its failure."""

    begin: float
    end: float
    said: str


class Prober:
    """A thread that probes, each time over a connection of its own, like a new process."""

    def __init__(self, runtime_dir: Path) -> None:
        self.looks: list[Look] = []
        self._target = RuntimeDir(runtime_dir).grpc_target
        self._ending = Event()
        self._thread = Thread(target=self._run, name="prober", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join()

    def _run(self) -> None:
        options = [("grpc.use_local_subchannel_pool", 1)]
        while not self._ending.wait(INTERVAL):
            begin = now()
            with grpc.insecure_channel(self._target, options=options) as channel:
                said = health_of(channel, timeout=DEADLINE)
            self.looks.append(Look(begin, now(), said))
