"""One schedule: a store, its clients, an operator and what goes wrong, by one seed."""

import gc
from collections import Counter
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import count
from pathlib import Path

from simulation import current, seams, sockets, wire
from simulation.kernel import Kernel, Killed, Violation
from simulation.node import ADMIN_UID, StoreNode
from simulation.operator import Operator
from simulation.pages import Oracle
from simulation.trouble import Trouble
from simulation.worker import Worker

# Simulated seconds: of trouble, for all to be well again, for a hold to end by itself.
TROUBLE = (0.3, 1.0)
RECOVERY = 10.0
AFTERMATH = 2.5
# Until late calls have come, and what an attempt to attach left behind has expired.
REST = 1.3
# The share of schedules whose stores outlive their servers.
OUTLIVING = 0.5
# Until a client that closed has told the store.
CLOSED = 0.5


@dataclass
class Outcome:
    """The result of a schedule. ``violation`` is None if nothing is wrong."""

    seed: int
    violation: str | None = None
    digest: str = ""
    steps: int = 0
    trace: list[str] = field(default_factory=list)
    calls: Counter[tuple[str, str]] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)


class Schedule:
    """The world of one seed. ``counts`` are faults and what was checked."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.kernel = Kernel(seed)
        current.begin(self.kernel)
        wire.begin(self)
        sockets.connecting.clear()
        sockets.listeners.clear()
        sockets.SimProcess.numbers = count(1)
        self.faults: wire.Faults = wire.Faults()
        self.oracle = Oracle(self.kernel)
        self.calls: Counter[tuple[str, str]] = Counter()
        self.counts: Counter[str] = Counter()
        self.folder = folder
        self.node: StoreNode | None = None
        self.workers: list[Worker] = []
        self.busy = True
        self._dead: list[sockets.SimProcess] = []
        self._slots = self.kernel.random.choice((8, 12, 20))
        self._outlives = self.kernel.random.random() < OUTLIVING
        self._names = count(1)

    # What the wire and the others ask.

    def count(self, what: str) -> None:
        """Count something."""
        self.counts[what] += 1

    def store(self) -> StoreNode | None:
        """Returns the store, if one runs."""
        return self.node if self.node is not None and self.node.alive else None

    def start_store(self) -> None:
        """Starts a store, unless one runs."""
        if self.store() is None:
            path = self.folder / "attach.sock"
            self.node = StoreNode(
                self.kernel,
                path,
                slots=self._slots,
                outcomes=self.calls,
                outlives=self._outlives,
            )
            self.kernel.note("store started")

    def kill_store(self) -> None:
        """Kills the store."""
        node = self.store()
        if node is not None:
            node.kill()
            self.count("killed_stores")
            self.kernel.note("store killed")

    def start_worker(self) -> None:
        """Starts a worker, of the one tenant more often than of the other."""
        uid = 1000 if self.kernel.random.random() < 0.85 else 1001
        self.workers.append(Worker(self, f"w{next(self._names)}", uid))

    def worker_processes(self) -> list[sockets.SimProcess]:
        """Returns the processes of the workers that live."""
        return [each.process for each in self.workers]

    def kill_worker(self, process: sockets.SimProcess) -> None:
        """Kills the worker of a process."""
        self.workers = [each for each in self.workers if each.process is not process]
        self._bury(process)
        self.count("killed_workers")
        self.kernel.note(process.name, "killed")

    # The schedule.

    def run(self) -> None:
        """Runs the whole schedule; raises :class:`Violation`."""
        chance, kernel = self.kernel.random, self.kernel
        trouble = Trouble(self)
        if chance.random() < 0.9:
            self.start_store()
        else:
            kernel.after(chance.random(), self.start_store)
        for _ in range(chance.choice((1, 2, 2, 3))):
            self.start_worker()
        operator = Operator(self, sockets.SimProcess("operator", ADMIN_UID))
        trouble.begin()
        self._go(lambda: False, chance.uniform(*TROUBLE))
        trouble.end()
        self.start_store()
        node = self.store()
        assert node is not None
        node.start_server()
        self.busy = False
        self._require("a worker's request never ends", lambda: all(w.idle for w in self.workers))
        self._require("the operator's call never ends", lambda: operator.idle)
        self._recover()
        self._leave(operator)

    def _go(self, until: object, seconds: float) -> bool:
        assert callable(until)
        done = self.kernel.run(until, seconds)
        if self.kernel.failures:
            raise Violation("; ".join(self.kernel.failures))
        return done

    def _require(self, otherwise: str, until: object) -> None:
        if not self._go(until, RECOVERY):
            raise Violation(otherwise)

    def _recover(self) -> None:
        """Checks that every healthy worker is served again, and finds the pages of others."""
        if not self.workers:
            self.start_worker()
        self._require(
            "a worker that is well is not connected again",
            lambda: all(w.connected for w in self.workers),
        )
        for worker in self.workers:
            worker.prove()
        self._require("a worker that is well gets no hit", lambda: all(w.hit for w in self.workers))
        self._go(lambda: False, REST)
        node = self.store()
        assert node is not None
        node.require_rest()
        names = sorted(each.display_name for each in node.leases())
        if names != sorted(w.process.name for w in self.workers):
            raise Violation(f"at rest there are the leases {names}")

    def _leave(self, operator: Operator) -> None:
        """Once all are gone and time passed, the store holds nothing of theirs."""
        for worker in self.workers:
            worker.close()
        self._require("a client does not close", lambda: all(w.closed for w in self.workers))
        node = self.store()
        assert node is not None
        if self.kernel.random.random() < 0.5:
            self._go(lambda: False, CLOSED)
            held = [w.process.name for w in self.workers if w.holds_at(node)]
            if held:
                raise Violation(f"{held} closed, and its lease is there")
        for worker in self.workers:
            self._bury(worker.process)
        self._bury(operator.process)
        self._go(lambda: False, AFTERMATH)
        node.require_empty()
        node.check()

    def _bury(self, process: sockets.SimProcess) -> None:
        process.kill()
        self._dead.append(process)

    def end(self) -> None:
        """Releases everything, whatever the result."""
        for worker in self.workers:
            worker.process.kill()
            self._dead.append(worker.process)
        if self.store() is not None:
            assert self.node is not None
            self.node.kill()
        for process in {id(each): each for each in self._dead}.values():
            process.close()
        seams.unmap()


def run_schedule(seed: int, folder: Path) -> Outcome:
    """Runs the schedule of a seed, with its sockets in ``folder``."""
    gc.disable()  # a finalizer's moment would be the machine's
    schedule = Schedule(seed, folder)
    outcome = Outcome(seed)
    try:
        schedule.run()
    except (Violation, Killed) as error:
        outcome.violation = str(error) or repr(error)
    finally:
        schedule.end()
        (folder / "attach.sock").unlink(missing_ok=True)
    kernel = schedule.kernel
    outcome.steps, outcome.trace = kernel.steps, kernel.trace
    outcome.digest = blake2b("\n".join(kernel.trace).encode(), digest_size=8).hexdigest()
    outcome.calls, outcome.counts = schedule.calls, schedule.counts
    outcome.counts["pages_checked"] += schedule.oracle.pages_checked
    outcome.counts["pages_written"] += schedule.oracle.pages_written
    outcome.counts["yields"] += schedule.oracle.yields
    return outcome
