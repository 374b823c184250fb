"""A chaos run from its beginning to its end."""

import random
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chaos.control import Control, Phase
from chaos.ending import check_left
from chaos.engines import Engines
from chaos.fleet import Fleet, running_nursery
from chaos.keeper import KINDS, KINDS_WITH_HOLDER, Keeper
from chaos.tally import WITH_HOLDER, Tally
from chaos.watcher import Watcher
from chaos.worker import LAYOUT
from support.succession.holder import Holder

# Small on purpose: reserves evict all the time, and now and then find nothing.
POOL_SLOTS, EXTENT_SLOTS = 128, 32
# How fast the load's window moves on, in requests a second.
LOAD_SPEED = 4.0
# Seconds: for the server to be back and what is stopped to go on; for workers to end.
CALM_LIMIT, END_LIMIT = 90.0, 60.0
# Seconds that a run may take longer until everything has happened.
LONGEST_WAIT = 120.0
# Requests that are served when nothing happens any more, before the workers end.
CALM_REQUESTS = 100


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The parts and lengths of a run."""

    minutes: float
    seed: int
    workers: int
    steady: int
    engines: int
    corrupt: int = 0
    trace: Path | None = None
    faults: str = ""
    server_faults: bool = True
    mutant: str = ""
    until_all: bool = False
    until_wrong: bool = False
    tier1_bytes: int = POOL_SLOTS * LAYOUT.page_bytes
    tier2_bytes: int = 0
    tier3_bytes: int = 0
    outlive: bool = False

    @property
    def verify_rate(self) -> float:
        """The share of matched pages that the store verifies; none where others are to see."""
        return 0.0 if self.corrupt or self.mutant else 0.05

    @property
    def cannot_happen(self) -> tuple[str, ...]:
        """The faults that cannot happen in such a run."""
        engines = () if self.engines else ("answers",)
        return engines if self.outlive else (*engines, *WITH_HOLDER)


class FoundWrongError(Exception):
    """Something is wrong, and that is all that was asked."""


class Run:
    """One run in a folder of its own, where the logs stay. One thread uses it."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self.tally = Tally(f"seed {plan.seed}, logs in {folder}")
        self._plan = plan
        self._folder = folder
        self._control = Control(folder / "control")

    def go(self) -> dict[str, Any]:
        """Returns the figures."""
        with suppress(FoundWrongError):
            self._go()
        return self.tally.figures()

    def _go(self) -> None:
        plan = self._plan
        with ExitStack() as stack:
            log = stack.enter_context((self._folder / "workers.log").open("ab"))
            keeper = self._keeper(self._holder(stack))
            stack.callback(keeper.close)
            keeper.ready.wait()
            if keeper.failure is not None:
                return
            watcher = Watcher(keeper.runtime_dir, self.tally)
            stack.callback(watcher.close)
            commands, reports = stack.enter_context(
                running_nursery(self._control.path, log, trace=plan.trace, seed=plan.seed)
            )
            engines = Engines(plan.engines, keeper.runtime_dir, log, self.tally, seed=plan.seed)
            stack.callback(engines.kill)
            fleet = Fleet(
                commands,
                reports,
                runtime_dir=keeper.runtime_dir,
                tally=self.tally,
                watcher=watcher,
                seed=plan.seed,
                kinds=plan.faults,
                outlive=plan.outlive,
            )
            self._faults(fleet)
            self._calm(fleet, keeper, engines)
            self._end(fleet, engines, watcher)
            if keeper.failure is None:
                check_left(keeper.runtime_dir, self.tally)

    def _holder(self, stack: ExitStack) -> Holder | None:
        if not self._plan.outlive:
            return None
        holder = Holder(self._folder / "holder")
        stack.callback(holder.kill)
        holder.start()
        return holder

    def _keeper(self, holder: Holder | None) -> Keeper:
        kinds = KINDS if holder is None else KINDS_WITH_HOLDER
        # Each kind of fault a few times, in a short run too.
        gap = self._plan.minutes * 60 / (2 * len(kinds)) if self._plan.server_faults else 0.0
        slab, size = self._folder / "slab", self._plan.tier3_bytes
        tier_3 = ("--tier3-path", str(slab), "--tier3-bytes", str(size)) if size else ()
        settings = (
            *("--tier1-bytes", str(self._plan.tier1_bytes)),
            *("--tier2-bytes", str(self._plan.tier2_bytes)),
            *tier_3,
            *(() if holder is None else ("--holder", str(holder.folder), "--no-holder-start")),
            # Whatever is inserted may come back from there.
            *("--tier3-write", "through"),
            *("--extent-bytes", str(min(EXTENT_SLOTS * LAYOUT.page_bytes, self._plan.tier1_bytes))),
            # The store looks too, and whoever reads what is no more sees it at once.
            *("--verify-rate", str(self._plan.verify_rate)),
            "--debug-poison-freed-slots",
        )
        return Keeper(
            self._folder,
            settings,
            self._control,
            self.tally,
            seed=self._plan.seed,
            gap=gap,
            mutant=self._plan.mutant,
            holder=holder,
        )

    def _faults(self, fleet: Fleet) -> None:
        """Runs all faults, for as long as the run is meant to take."""
        begun = time.monotonic()
        start = random.Random(self._plan.seed).randrange(1_000)
        for _ in range(self._plan.steady):
            fleet.start("light")
        fleet.start("operator")
        while self._goes_on(passed := time.monotonic() - begun):
            self._control.begun = start + int(passed * LOAD_SPEED)
            fleet.refill(self._plan.workers)
            self._step(fleet)

    def _goes_on(self, passed: float) -> bool:
        """True if faults go on after so many seconds."""
        plan, seconds = self._plan, self._plan.minutes * 60
        if passed < seconds:
            return True
        lacking = plan.until_all and bool(self.tally.without(*plan.cannot_happen))
        return lacking and passed < max(LONGEST_WAIT, 2 * seconds)

    def _calm(self, fleet: Fleet, keeper: Keeper, engines: Engines) -> None:
        """Ends all faults, and lets the work go on for a while."""
        self._control.phase = Phase.CALM
        keeper.end_faults()

        def quiet() -> bool:
            return keeper.calm and not fleet.stopped and engines.answered

        self._until(fleet, quiet, CALM_LIMIT, "the faults did not end")
        if self._plan.corrupt:
            fleet.start("corruptor", life=self._plan.corrupt)
            corrupted = "corrupted"
            self._until(
                fleet, lambda: corrupted in self.tally.told, CALM_LIMIT, "nothing was corrupted"
            )
        enough = self.tally["requests"] + CALM_REQUESTS
        self._until(
            fleet,
            lambda: self.tally["requests"] >= enough or not fleet.of("light"),
            CALM_LIMIT,
            "the workers do not work any more",
        )

    def _end(self, fleet: Fleet, engines: Engines, watcher: Watcher) -> None:
        """Ends all workers, and reads all pages that are left."""
        self._control.phase = Phase.END
        self._until_gone(fleet, "light")
        self._until_gone(fleet, "operator")
        engines.close()
        fleet.start("walker")
        self._until_gone(fleet, "walker")
        self._control.phase = Phase.LAST
        self._until_gone(fleet, "corruptor")
        self._until(fleet, lambda: not watcher.waiting, END_LIMIT, "a lease of a dead worker")

    def _until_gone(self, fleet: Fleet, role: str) -> None:
        what = f"a {role} does not end"
        if not self._until(fleet, lambda: not fleet.of(role), END_LIMIT, what):
            fleet.kill(role)
            self._until(fleet, lambda: not fleet.of(role), END_LIMIT, what)

    def _until(self, fleet: Fleet, condition: Callable[[], bool], limit: float, what: str) -> bool:
        """Goes on until a condition holds; one that does not come to is counted."""
        until = time.monotonic() + limit
        while not condition():
            if time.monotonic() > until:
                self.tally.wrong("hung_workers", what)
                return False
            self._step(fleet)
        return True

    def _step(self, fleet: Fleet) -> None:
        fleet.step()
        if self._plan.until_wrong and not self.tally.clean:
            raise FoundWrongError
