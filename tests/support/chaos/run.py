"""A chaos run from its beginning to its end."""

import random
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from chaos.control import Control, Phase
from chaos.ending import check_left
from chaos.host import Crew, Host, every
from chaos.keeper import KINDS, KINDS_WITH_HOLDER, LONGEST_GAP, Keeper
from chaos.load import LONE_HOST, SEVERAL_HOSTS, SEVERAL_HOSTS_BRIEFLY, WINDOW, Shape
from chaos.remote.hang import measure_hang
from chaos.remote.shared import BEHIND_SECONDS, SharedEngine
from chaos.tally import WITH_HOLDER, WITH_REMOTE, Tally
from chaos.worker import LAYOUT
from support.succession.holder import Holder

# Small on purpose: reserves evict all the time, and now and then find nothing.
POOL_SLOTS, EXTENT_SLOTS = 128, 32
# How fast the load's window moves on, in requests a second.
LOAD_SPEED = 4.0
# With several hosts the window moves on by so many requests for each one that a host served. So
# both hosts serve nearly all requests, however slow the machine is, and most pages are new to the
# other host. It asks for a request after so many others, when the engine has the pages.
HOSTS_LOAD_PACE = 0.5
HOSTS_LAG = WINDOW * 5 // 4
# Removers of each host: most turns end early, since something happens to a host or to the engine.
REMOVERS = 5
# Seconds between two faults of a server that is one of several: what travels by the engine
# needs both ends.
HOSTS_GAP = 8.0
# Seconds: for the server to be back and what is stopped to go on; for workers to end.
CALM_LIMIT, END_LIMIT = 90.0, 60.0
# Seconds that a run may take longer until everything has happened.
LONGEST_WAIT = 180.0
# What happens by faults of servers and of workers alone.
OF_SERVERS = ("killed_servers", "stopped_servers", "clock_jumps")
OF_WORKERS = ("killed_workers", "stopped_workers", "quarantined", "network_cuts")
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
    hosts: int = 1
    remote: str = ""

    @property
    def verify_rate(self) -> float:
        """The share of matched pages that the store verifies; none where others are to see."""
        return 0.0 if self.corrupt or self.mutant else 0.05

    @property
    def shape(self) -> Shape:
        """The sizes of the requests."""
        if self.hosts == 1:
            return LONE_HOST
        return SEVERAL_HOSTS if self.minutes >= 1.0 else SEVERAL_HOSTS_BRIEFLY

    @property
    def cannot_happen(self) -> tuple[str, ...]:
        """The faults that cannot happen in such a run."""
        engines = () if self.engines else ("answers",)
        holder = () if self.outlive else WITH_HOLDER
        # The pools of hosts have room, so that loads find some.
        remote = ("evictions", "full_pools") if self.remote else WITH_REMOTE
        servers = () if self.server_faults else OF_SERVERS
        workers = () if self.workers else OF_WORKERS
        return (*engines, *holder, *remote, *servers, *workers)


class FoundWrongError(Exception):
    """Something is wrong, and that is all that was asked."""


class Run:
    """One run in a folder of its own, where the logs stay. One thread uses it."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self.tally = Tally(f"seed {plan.seed}, logs in {folder}")
        self._plan = plan
        self._folder = folder
        self._hang: dict[str, object] = {}

    def go(self) -> dict[str, Any]:
        """Returns the figures."""
        with suppress(FoundWrongError):
            self._go()
        return self.tally.figures() | self._hang

    def _go(self) -> None:
        plan = self._plan
        with ExitStack() as stack:
            log = stack.enter_context((self._folder / "workers.log").open("ab"))
            shared = self._shared(stack)
            hosts = self._hosts(shared, log, stack)
            if hosts is None:
                return
            self._faults(hosts)
            self._calm(hosts, shared)
            self._end(hosts)
            if shared is not None:
                runtime_dir = hosts[0].keeper.runtime_dir
                self._hang = measure_hang(runtime_dir, shared.rig, self.tally, plan.seed)
            for host in hosts:
                if host.keeper.failure is None:
                    check_left(host.keeper.runtime_dir, self.tally)

    def _shared(self, stack: ExitStack) -> SharedEngine | None:
        plan = self._plan
        if not plan.remote:
            return None
        return SharedEngine(
            self._folder,
            plan.hosts,
            self.tally,
            stack,
            seed=plan.seed,
            minutes=plan.minutes,
        )

    def _hosts(
        self, shared: SharedEngine | None, log: IO[bytes], stack: ExitStack
    ) -> list[Host] | None:
        """Starts the stores, then their workers. Returns None if a store does not start."""
        plan = self._plan
        crew = Crew(plan.engines, plan.faults, plan.outlive, plan.trace, plan.shape)
        holder = self._holder(stack)
        started: list[tuple[Keeper, Control]] = []
        for number in range(plan.hosts):
            folder = self._folder if plan.hosts == 1 else self._folder / f"h{number}"
            folder.mkdir(exist_ok=True)
            control = Control(folder / "control")
            settings = () if shared is None else shared.settings(number)
            keeper = self._keeper(folder, control, holder, settings, number)
            stack.callback(keeper.close)
            started.append((keeper, control))
        for keeper, _ in started:
            keeper.ready.wait()
            if keeper.failure is not None:
                return None
        folders = [keeper.runtime_dir for keeper, _ in started]
        return [
            Host(
                number,
                keeper,
                control,
                crew,
                self.tally,
                log,
                stack,
                seed=plan.seed,
                other_dir=folders[number - 1] if plan.hosts > 1 else None,
            )
            for number, (keeper, control) in enumerate(started)
        ]

    def _holder(self, stack: ExitStack) -> Holder | None:
        if not self._plan.outlive:
            return None
        holder = Holder(self._folder / "holder")
        stack.callback(holder.kill)
        holder.start()
        return holder

    def _keeper(
        self,
        folder: Path,
        control: Control,
        holder: Holder | None,
        more: tuple[str, ...],
        number: int,
    ) -> Keeper:
        plan = self._plan
        kinds = KINDS if holder is None else KINDS_WITH_HOLDER
        # Each kind of fault a few times, in a short run too.
        gap = plan.minutes * 60 / (2 * len(kinds)) if plan.server_faults else 0.0
        longest = LONGEST_GAP if plan.hosts == 1 else HOSTS_GAP
        slab, size = folder / "slab", plan.tier3_bytes
        tier_3 = ("--tier3-path", str(slab), "--tier3-bytes", str(size)) if size else ()
        settings = (
            *("--tier1-bytes", str(plan.tier1_bytes)),
            *("--tier2-bytes", str(plan.tier2_bytes)),
            *tier_3,
            *more,
            *(() if holder is None else ("--holder", str(holder.folder), "--no-holder-start")),
            # Whatever is inserted may come back from there.
            *("--tier3-write", "through"),
            *("--extent-bytes", str(min(EXTENT_SLOTS * LAYOUT.page_bytes, plan.tier1_bytes))),
            # The store looks too, and whoever reads what is no more sees it at once.
            *("--verify-rate", str(plan.verify_rate)),
            "--debug-poison-freed-slots",
        )
        return Keeper(
            folder,
            settings,
            control,
            self.tally,
            seed=plan.seed + number,
            gap=min(gap, longest),
            mutant=plan.mutant,
            holder=holder,
            behind=BEHIND_SECONDS if number else 0.0,
        )

    def _faults(self, hosts: list[Host]) -> None:
        """Runs all faults, for as long as the run is meant to take."""
        begun = time.monotonic()
        start = random.Random(self._plan.seed).randrange(1_000)
        for host in hosts:
            for _ in range(self._plan.steady):
                host.fleet.start("light")
            host.fleet.start("operator")
            for _ in range(REMOVERS if self._plan.remote else 0):
                host.fleet.start("remover")
        while self._goes_on(passed := time.monotonic() - begun):
            place = start + int(self._progress(passed))
            for number, host in enumerate(hosts):
                # Each host asks for what the one before it computed a while ago.
                host.control.begun = max(place - number * HOSTS_LAG, start)
                host.fleet.refill(self._plan.workers)
            self._step(hosts)

    def _progress(self, passed: float) -> float:
        """Returns by how many requests the load's window has moved on after so many seconds."""
        hosts = self._plan.hosts
        if hosts == 1:
            return passed * LOAD_SPEED
        return (self.tally["hits"] + self.tally["misses"]) / hosts * HOSTS_LOAD_PACE

    def _goes_on(self, passed: float) -> bool:
        """True if faults go on after so many seconds."""
        plan, seconds = self._plan, self._plan.minutes * 60
        if passed < seconds:
            return True
        lacking = plan.until_all and bool(self.tally.without(*plan.cannot_happen))
        return lacking and passed < max(LONGEST_WAIT, 2 * seconds)

    def _calm(self, hosts: list[Host], shared: SharedEngine | None) -> None:
        """Ends all faults, and lets the work go on for a while."""
        for host in hosts:
            host.control.phase = Phase.CALM
            host.keeper.end_faults()
        if shared is not None:
            shared.calm()

        def quiet() -> bool:
            struck = shared is not None and not shared.strikes.calm
            return not struck and all(host.quiet for host in hosts)

        self._until(hosts, quiet, CALM_LIMIT, "the faults did not end")
        if self._plan.corrupt:
            hosts[0].fleet.start("corruptor", life=self._plan.corrupt)
            corrupted = "corrupted"
            self._until(
                hosts, lambda: corrupted in self.tally.told, CALM_LIMIT, "nothing was corrupted"
            )
        enough = self.tally["requests"] + CALM_REQUESTS
        self._until(
            hosts,
            lambda: self.tally["requests"] >= enough or not hosts[0].fleet.of("light"),
            CALM_LIMIT,
            "the workers do not work any more",
        )

    def _end(self, hosts: list[Host]) -> None:
        """Ends all workers, and reads all pages that are left."""
        for host in hosts:
            host.control.phase = Phase.END
        for role in ("light", "operator", "remover"):
            self._until_gone(hosts, role)
        for host in hosts:
            host.engines.close()
            host.fleet.start("walker")
        self._until_gone(hosts, "walker")
        for host in hosts:
            host.control.phase = Phase.LAST
        self._until_gone(hosts, "corruptor")
        settled = every(hosts, lambda host: not host.watcher.waiting)
        self._until(hosts, settled, END_LIMIT, "a lease of a dead worker")

    def _until_gone(self, hosts: list[Host], role: str) -> None:
        what = f"a {role} does not end"
        gone = every(hosts, lambda host: not host.fleet.of(role))
        if not self._until(hosts, gone, END_LIMIT, what):
            for host in hosts:
                host.fleet.kill(role)
            self._until(hosts, gone, END_LIMIT, what)

    def _until(
        self, hosts: list[Host], condition: Callable[[], bool], limit: float, what: str
    ) -> bool:
        """Goes on until a condition holds; one that does not come to is counted."""
        until = time.monotonic() + limit
        while not condition():
            if time.monotonic() > until:
                self.tally.wrong("hung_workers", what)
                return False
            self._step(hosts)
        return True

    def _step(self, hosts: list[Host]) -> None:
        for host in hosts:
            host.fleet.step()
        if self._plan.until_wrong and not self.tally.clean:
            raise FoundWrongError
