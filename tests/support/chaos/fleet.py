"""The light workers of a chaos run: started, struck, waited for and replaced."""

import json
import os
import random
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import IO

from chaos.load import Shape
from chaos.nursery import PACKET
from chaos.schedule import KILL, STOP, Fault, faults, kinds_of
from chaos.tally import Tally
from chaos.watcher import EXPIRED, Watcher
from chaos.worker import Orders

# The folders of tests and of benchmarks that programs of a run import from.
PATHS = [str(Path(__file__).parents[1]), str(Path(__file__).parents[3] / "benchmarks")]
NURSERY = "from chaos.nursery import main"
TTL = 1.0
# Longer than a server is away, so that sessions outlive it, and than a busy machine stops one.
LONG_TTL = 20.0
# Requests of a trace that are replayed.
REQUESTS = 4_000
# Between two workers with a fault, in seconds.
SPAWN_GAP = 0.3
# A stopped worker that is not seen past its TTL goes on after this long: one without a lease,
# and one of a store that does not answer.
LEASELESS_STOP, LONGEST_STOP = 2.5 * TTL, 6.0
STEP_SECONDS = 0.05
# Of those that were stopped, so many are killed before they go on.
KILLED_AFTER_STOP = 0.25


@dataclass
class Worker:
    """One worker that lives, and what is to happen to it."""

    orders: Orders
    fault: Fault | None = None
    stopped_at: float | None = None


class Fleet:
    """Workers by number, all of one nursery. One thread uses it."""

    def __init__(
        self,
        commands: socket.socket,
        reports: socket.socket,
        *,
        runtime_dir: Path,
        tally: Tally,
        watcher: Watcher,
        seed: int,
        kinds: str,
        outlive: bool = False,
        other_dir: Path | None = None,
    ) -> None:
        """Takes a nursery's sockets. ``other_dir`` is the store of another host, if any."""
        # No worker of another host has its name.
        self._suffix = f"@{runtime_dir.parent.name}" if other_dir else ""
        self._other_dir = "" if other_dir is None else str(other_dir)
        self._commands = commands
        self._reports = reports
        self._runtime_dir = str(runtime_dir)
        self._tally = tally
        self._watcher = watcher
        self._outlive = outlive
        self._chosen = random.Random(seed)
        self._numbers = count(1)
        self._faults = faults(kinds_of(kinds), random.Random(seed))
        self._workers: dict[int, Worker] = {}
        self._next_spawn = 0.0
        self._selector = selectors.DefaultSelector()
        self._selector.register(reports, selectors.EVENT_READ, self._take_report)
        self._selector.register(commands, selectors.EVENT_READ, self._take_event)

    def start(self, role: str, *, life: int = 0, fault: Fault | None = None) -> None:
        """Starts a worker."""
        number = next(self._numbers)
        orders = Orders(
            number,
            f"{role}-{number}{self._suffix}",
            role,
            self._runtime_dir,
            seed=self._chosen.getrandbits(32),
            life=fault.life if fault else life,
            faults=fault.text if fault else "",
            kind=fault.kind if fault else "",
            ttl=self._ttl(fault),
            other_dir=self._other_dir,
        )
        self._workers[number] = Worker(orders, fault)
        self._send(orders._asdict())
        self._tally.add("workers")

    def _ttl(self, fault: Fault | None) -> float:
        # A worker that is stopped has to be seen past its time to live.
        is_stopped = fault is not None and fault.action == STOP
        return LONG_TTL if (self._outlive or self._other_dir) and not is_stopped else TTL

    def refill(self, size: int) -> None:
        """Starts one worker with a fault if fewer than ``size`` have one and the gap is over."""
        with_fault = sum(each.fault is not None for each in self._workers.values())
        now = time.monotonic()
        if with_fault < size and now >= self._next_spawn:
            self._next_spawn = now + SPAWN_GAP
            self.start("light", fault=next(self._faults))

    def step(self) -> None:
        """Takes what comes for a moment, and attend to those that are stopped."""
        for key, _ in self._selector.select(STEP_SECONDS):
            key.data()
        for number, worker in list(self._workers.items()):
            if worker.stopped_at is not None:
                self._attend(number, worker, worker.stopped_at)

    def of(self, role: str) -> list[Worker]:
        """Returns the workers of a role that live."""
        return [each for each in self._workers.values() if each.orders.role == role]

    @property
    def stopped(self) -> bool:
        """True if any worker is stopped."""
        return any(each.stopped_at is not None for each in self._workers.values())

    def kill(self, role: str) -> None:
        """Kills all workers of a role."""
        for worker in self.of(role):
            self._signal(worker.orders.number, signal.SIGKILL)

    def _attend(self, number: int, worker: Worker, stopped_at: float) -> None:
        """Resumes a stopped worker, or kills it, once the store saw it past its TTL."""
        look = self._watcher.look
        if look.begun > stopped_at:
            expired = [each for each in look.leases(worker.orders.name) if each.state == EXPIRED]
            if expired:
                self._tally.add("stopped_workers")
                self._tally.add("quarantined", sum(e.quarantined_slot_count for e in expired))
                self._tally.add("pins_held_past_a_ttl", sum(e.pin_count for e in expired))
                self._go_on(number, worker)
                return
        leaseless = look.begun > stopped_at and not look.leases(worker.orders.name)
        if time.monotonic() - stopped_at > (LEASELESS_STOP if leaseless else LONGEST_STOP):
            self._tally.add("stopped_without_a_lease")
            self._go_on(number, worker)

    def _go_on(self, number: int, worker: Worker) -> None:
        worker.stopped_at = None
        killed = self._chosen.random() < KILLED_AFTER_STOP
        self._signal(number, signal.SIGKILL if killed else signal.SIGCONT)

    def _take_report(self) -> None:
        self._tally.take(json.loads(self._reports.recv(PACKET)))

    def _take_event(self) -> None:
        packet = self._commands.recv(PACKET)
        if not packet:
            raise RuntimeError("the nursery ended")
        event = json.loads(packet)
        worker = self._workers[event["number"]]
        fault = worker.fault
        if "stopped" in event:
            worker.stopped_at = time.monotonic()
            if fault is not None:
                self._tally.struck(fault.kind)
            return
        del self._workers[event["number"]]
        status = event["ended"]
        if status == -signal.SIGKILL:
            self._tally.add("killed_workers")
            self._watcher.departed(worker.orders.name)
            if fault is not None and fault.action == KILL:
                self._tally.struck(fault.kind)
        elif status == 0:
            self._tally.add("left_workers")
        else:
            self._tally.wrong("crashed_workers", f"{worker.orders.name} ended with {status}")

    def _signal(self, number: int, which: signal.Signals) -> None:
        self._send({"number": number, "signal": int(which)})

    def _send(self, message: dict[str, object]) -> None:
        self._commands.send(json.dumps(message).encode())


@contextmanager
def running_nursery(
    control: Path, log: IO[bytes], *, trace: Path | None, seed: int, shape: Shape
) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Runs a nursery until the block ends; gives the sockets of its commands and its reports."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    reports, reporting = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    code = f"import sys; sys.path[:0] = {PATHS!r}; {NURSERY}; sys.exit(main())"
    ends = [theirs.fileno(), reporting.fileno()]
    arguments = [
        *map(str, (os.getpid(), *ends)),
        str(control),
        str(trace or ""),
        str(seed),
        str(REQUESTS),
        *map(str, shape),
    ]
    with ours, reports:
        process = subprocess.Popen(  # our own program
            [sys.executable, "-c", code, *arguments], pass_fds=ends, stderr=log, stdout=log
        )
        theirs.close()
        reporting.close()
        try:
            yield ours, reports
        finally:
            ours.close()
            reports.close()
            process.wait()
