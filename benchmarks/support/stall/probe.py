"""Looks at a store's health again and again, as a supervisor does."""

from pathlib import Path
from threading import Event, Thread
from typing import NamedTuple, Self

import grpc

from kvstore_client.calls.health import health_of
from kvstore_client.runtime_dir import RuntimeDir
from support.stall.load import now

# Seconds: the deadline of deploy/healthcheck.py, and between two looks.
DEADLINE = 2.0
INTERVAL = 0.1


class Look(NamedTuple):
    """One look: when it began and ended, and what was said, or the status code of no answer."""

    begin: float
    end: float
    said: str


class Prober:
    """A thread that looks; each time over a connection of its own, as a new process would."""

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
