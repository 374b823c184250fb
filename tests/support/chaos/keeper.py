"""Keeps a server running, and has happen to it what happens to servers."""

import os
import random
import re
import time
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import cycle
from pathlib import Path
from threading import Event, Thread

from chaos.control import SERVER_POINTS, Control
from chaos.tally import Tally
from kvstore_client.testing import RunningStore, running_store, wait_until
from support.succession.holder import Holder

# The folders of tests and of benchmarks that programs of a run import from.
PATHS = [str(Path(__file__).parents[1]), str(Path(__file__).parents[3] / "benchmarks")]
# What comes in turn; a round of it a run of a minute has several times.
KINDS = ("kill", "jump", "cut", "stop", "kill")
# With a holder its faults too: it is killed alone, and together with the server.
KINDS_WITH_HOLDER = (
    *("kill", "jump", "holder", "cut", "yield", "kill", "stop", "both", "kill"),
    *("holder", "kill", "yield"),
)
# Seconds until a server has deposited everything with another holder.
DEPOSIT_SECONDS = 15.0
EPOCH = re.compile(r"store_epoch=(\d+)")
# Seconds between two of them at most, and how far the clock jumps.
LONGEST_GAP = 2.5
JUMPS = (20.0, 600.0)
# How long it is stopped: longer than a client's call waits.
STOPPED = (1.3, 2.5)
# A server that is not used does not come to its point: it is struck as it is, then.
REACH_SECONDS = 2.0


def program(control: Path, mutant: str, behind: float = 0.0) -> tuple[str, ...]:
    """Returns what Python runs as the server; ``mutant`` is a name of MUTANTS or empty.

    Its calendar is ``behind`` by so many seconds.
    """
    code = (
        f"import sys; sys.path[:0] = {PATHS!r}; "
        "from chaos.server import main; "
        f"sys.exit(main({str(control)!r}, {mutant!r}, {os.getpid()}, {behind}))"
    )
    return ("-c", code)


class Keeper:
    """A thread with a server of its own. ``ready`` is set once the first one serves.

    ``gap`` is about how many seconds lie between two faults, none: there are none. The
    thread that starts a server outlives it, for a server dies with that thread. With
    ``holder``, which runs, each server has to recover, unless both were killed. The host's
    calendar is ``behind`` by so many seconds.
    """

    def __init__(  # each is one fact of the run
        self,
        folder: Path,
        arguments: tuple[str, ...],
        control: Control,
        tally: Tally,
        *,
        seed: int,
        gap: float,
        mutant: str,
        holder: Holder | None = None,
        behind: float = 0.0,
    ) -> None:
        self.ready = Event()
        self.runtime_dir = folder / "run"
        self.failure: BaseException | None = None
        self._arguments = arguments
        self._control = control
        self._tally = tally
        self._chosen = random.Random(seed)
        self._gap = gap
        self._mutant = mutant
        self._holder = holder
        self._behind = behind
        self._clean_starts = 0
        self._no_more_faults = Event()
        self._calm = Event()
        self._closing = Event()
        self._thread = Thread(target=self._run, name="chaos-keeper", daemon=True)
        self._thread.start()

    def end_faults(self) -> None:
        """Ends all faults of the server. Does not wait."""
        self._no_more_faults.set()

    @property
    def calm(self) -> bool:
        """True if nothing happens to the server any more, and it serves or failed for good."""
        return self._calm.is_set()

    def close(self) -> None:
        """Stops the server."""
        self._no_more_faults.set()
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            with ExitStack() as stack:
                store = stack.enter_context(
                    running_store(
                        *self._arguments,
                        runtime_dir=self.runtime_dir,
                        program=program(self._control.path, self._mutant, self._behind),
                    )
                )
                self.ready.set()
                self._strike(store)
                self._calm.set()
                self._closing.wait()
            if "Traceback" in store.log:
                at = store.log.index("Traceback")
                self._tally.wrong("server_failures", store.log[max(0, at - 300) : at + 3000])
            self._check_epochs(store)
        except BaseException as error:
            self.failure = error
            self._tally.wrong("server_failures", repr(error))
            self.ready.set()
            self._calm.set()
            raise

    def _strike(self, store: RunningStore) -> None:
        points = self._points()
        kinds = KINDS if self._holder is None else KINDS_WITH_HOLDER
        for kind in cycle(kinds if self._gap else ()):
            if self._no_more_faults.wait(self._gap * self._chosen.uniform(0.7, 1.3)):
                break
            if kind == "jump":
                self._control.jump(self._chosen.uniform(*JUMPS))
                self._tally.add("clock_jumps")
                continue
            if self._holder is not None and kind in ("holder", "both", "yield"):
                self._strike_holder(store, self._holder, kind)
                continue
            point = next(points)
            self._control.arm(point, kind)
            reached = wait_until(lambda: not self._control.armed, REACH_SECONDS)
            self._control.disarm()
            self._tally.struck(f"server.{point if reached else 'any'}={kind}")
            if kind == "kill":
                store.restart()
                self._tally.add("killed_servers")
            elif kind == "stop":
                store.suspend()
                self._pause(self._chosen.uniform(*STOPPED))
                store.resume()
                self._tally.add("stopped_servers")
            else:
                self._tally.add("network_cuts")

    def _strike_holder(self, store: RunningStore, holder: Holder, kind: str) -> None:
        """Kills the holder alone, or with the server, or ends the server so that it yields."""
        if kind == "yield":
            status = store.stop()
            if status != 0:
                self._tally.wrong("server_failures", f"ended with {status} at SIGTERM")
            store.start()
            self._tally.add("replaced_servers")
            return
        deposits = store.log.count("holder_restored")
        holder.kill()
        self._tally.add("killed_holders")
        if kind == "both":
            store.kill()
            self._clean_starts += 1
            holder.start()
            store.start()
            self._tally.add("killed_with_holder")
            return
        holder.start()
        if not wait_until(lambda: store.log.count("holder_restored") > deposits, DEPOSIT_SECONDS):
            self._tally.wrong("server_failures", "nothing was deposited with another holder")

    def _check_epochs(self, store: RunningStore) -> None:
        """Counts the starts that lost the cache, though holder or server lived."""
        if self._holder is not None:
            epochs = set(EPOCH.findall(store.log))
            self._tally.add("recovered", store.log.count("store_recovered"))
            self._tally.wrong(
                "lost_caches", f"epochs {epochs}", max(len(epochs) - 1 - self._clean_starts, 0)
            )

    def _pause(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self._closing.wait(left)
            if self._closing.is_set():
                return

    def _points(self) -> Iterator[str]:
        while True:
            yield from self._chosen.sample(SERVER_POINTS, len(SERVER_POINTS))
