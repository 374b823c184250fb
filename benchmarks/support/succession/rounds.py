"""The rounds of outlive.py: a server ends under load, another begins, and all pages are checked."""

import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing.context import SpawnProcess
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from threading import Event
from typing import Any

from kvstore_client import Client, ClientConfig, connect_admin
from kvstore_client.errors import StoreError
from kvstore_client.testing import wait_until
from support.succession.acknowledged import Acknowledged
from support.succession.checkpoints import OWNED, RECOVERED, Checkpoints
from support.succession.clients import TTL, Clients, Gap
from support.succession.conversations import IDENTITY, LAYOUT
from support.succession.holder import Holder
from support.succession.mutants import MUTANTS, Mutant
from support.succession.oracle import NoAnswer, Oracle, changed
from support.succession.servers import Servers
from support.succession.tables import Snapshot, Tables

KILL, REPLACE, STOP = "kill", "replace", "stop"
ORACLE = "oracle"
# Seconds of load before a server ends.
LOAD_SECONDS = 0.05, 1.0
# In one of that many rounds a client with holds dies while no server runs.
VICTIM_EVERY = 5
# Seconds.
FILL_TIMEOUT, ANSWER_TIMEOUT, RETURN_TIMEOUT, SETTLE_TIMEOUT = 300.0, 60.0, 15.0, 15.0
# Extents of the tier.
EXTENTS = 8
# Figures that have to be zero.
ZEROS = (
    *("wrong_pages", "lost_pages", "returned_pages", "requests_failed", "mappings_made_anew"),
    *("holds_lost", "leaked_holds", "victims_not_returned", "foreign_writes", "unanswered_rounds"),
    *("crashed_clients", "clean_starts", "log_tracebacks", "second_servers"),
)
SUMS = ("acknowledged_pages", "checked_pages", "found_pages", "evicted_pages", "other_pages")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The size and the length of a run. Without ``holder`` each start of a server is clean."""

    kills: int
    replacements: int
    stops: int
    pages: int
    clients: int
    seed: int
    holder: bool = True
    mutant: str = ""


def run(plan: Plan) -> dict[str, Any]:
    """Returns the figures of all rounds."""
    with TemporaryDirectory(prefix="kv-outlive-") as name, ExitStack() as stack:
        return _Run(plan, Path(name), stack).go()


class _Run:
    """One run in a folder. One thread uses it, beside that of the checkpoints."""

    def __init__(self, plan: Plan, folder: Path, stack: ExitStack) -> None:
        self._plan = plan
        self._mutant = MUTANTS[plan.mutant] if plan.mutant else Mutant()
        self._rng = Random(plan.seed)
        self._counts = Counter[str]()
        self._gaps: dict[str, list[float]] = {KILL: [], REPLACE: []}
        self._rounds = Counter[str]()
        self._victim: SpawnProcess | None = None
        self._recoveries: list[dict[str, Any]] = []
        self._snapshots: dict[str, Snapshot] = {}
        self._recovered_at = 0.0
        self._tables: Tables | None = None
        path = folder / "checkpoints"
        stack.enter_context(Checkpoints(path, self._reached))
        arguments = [*_settings(plan.pages * LAYOUT.page_bytes), "--drain-grace", "0"]
        if plan.holder:
            self._holder = Holder(folder / "holder", plan.mutant)
            stack.callback(self._holder.kill)
            self._holder.start()
            arguments += ["--holder", str(self._holder.folder), "--no-holder-start"]
        self._servers = Servers(folder, arguments, checkpoints=path, mutant=plan.mutant)
        stack.callback(self._servers.stop)
        self._servers.start()
        self._clients = Clients(self._servers.runtime_dir, folder, plan.clients, plan.seed)
        stack.callback(self._clients.kill)
        config = ClientConfig(display_name=ORACLE, call_timeout=10.0, ttl=TTL)
        client = stack.enter_context(Client(self._servers.runtime_dir, config))
        self._namespace = client.namespace(IDENTITY, LAYOUT)
        self._acknowledged = Acknowledged(self._clients.rows)

    def go(self) -> dict[str, Any]:
        """Runs all rounds, and returns the figures."""
        if not self._namespace.wait_open(ANSWER_TIMEOUT):
            raise RuntimeError(f"{self._namespace.failure}\n{self._servers.log[-4000:]}")
        tables = self._tables = Tables(self._namespace)
        oracle = Oracle(self._namespace, tables, self._acknowledged)
        self._fill()
        tables.follow()
        self._clients.shared.counting.set()
        self._servers.news()
        for number, kind in enumerate(_kinds(self._plan), start=1):
            self._rounds[kind] += 1
            try:
                if kind == STOP:
                    self._stop_round(oracle, tables)
                else:
                    self._round(number, kind, oracle, tables)
            except NoAnswer as error:
                self._counts["unanswered_rounds"] += 1
                sys.stderr.write(f"round {number}, a {kind}: {error}\n")
                self._read_log()
                break
            sys.stderr.write(f"round {number}, a {kind}: {dict(oracle.counts)}\n")
        clients = self._clients.end()
        try:
            self._check_left()
        except StoreError as error:
            self._counts["unanswered_rounds"] += 1
            sys.stderr.write(f"at the end: {error}\n")
        return self._figures(oracle.counts + clients)

    def _round(self, number: int, kind: str, oracle: Oracle, tables: Tables) -> None:
        """Ends one server under load, begins another, and checks all pages."""
        victim = self._clients.start_victim() if number % VICTIM_EVERY == 0 else None
        Event().wait(self._rng.uniform(*LOAD_SECONDS))
        tables.follow()
        self._snapshots.clear()
        self._victim = None if victim is None else victim[1]
        if kind == REPLACE and self._plan.holder and not self._mutant.swapped:
            ended = self._servers.replace()
            # The tables once the first server had given them up.
            before = self._snapshots[OWNED]
        else:
            ended = self._servers.kill()
            before = tables.snapshot()
            self._kill_victim()
            if self._mutant.swapped:
                self._clients.swap_descriptors(self._holder.folder, self._mutant.swapped)
            self._servers.begin()
        gap = self._answered(ended)
        self._gaps[kind].append(gap.end - gap.begin)
        self._counts["foreign_writes"] += changed(before, self._snapshots.get(OWNED, before))
        if victim is not None:
            self._check_victim(*victim)
        oracle.check(before, self._snapshots[RECOVERED])
        self._clients.shared.pausing.clear()
        self._read_log()
        tables.drop_unmapped()

    def _stop_round(self, oracle: Oracle, tables: Tables) -> None:
        """Stops the server, starts another one, and continues the first: it has to be alone."""
        Event().wait(self._rng.uniform(*LOAD_SECONDS))
        tables.follow()
        self._snapshots.clear()
        stopped = self._servers.suspend()
        before = tables.snapshot()
        other = self._servers.begin_beside()
        try:
            wait_until(
                lambda: RECOVERED in self._snapshots or self._servers.has_ended(other),
                ANSWER_TIMEOUT,
            )
            self._counts["second_servers"] += RECOVERED in self._snapshots
            self._counts["foreign_writes"] += changed(before, tables.snapshot())
            self._servers.resume()
            self._recovered_at = stopped
            after = self._snapshots.setdefault(RECOVERED, before)
            self._answered(stopped)
            self._clients.shared.pausing.set()
            oracle.check(before, after)
            self._clients.shared.pausing.clear()
        finally:
            other.kill()
        self._read_log()

    def _fill(self) -> None:
        """Waits until the store had to evict."""

        def full() -> bool:
            with connect_admin(self._servers.runtime_dir) as admin:
                return admin.stats().counters.evicted_page_count > 0

        if not wait_until(full, FILL_TIMEOUT):
            raise RuntimeError(f"the store is not full after {FILL_TIMEOUT} s")

    def _answered(self, ended: float) -> Gap:
        """Waits until the asking client has an answer of the successor."""
        found: list[Gap] = []

        def answered() -> bool:
            found[:] = self._clients.answers_since(ended)
            return RECOVERED in self._snapshots and any(
                gap.end > self._recovered_at for gap in found
            )

        if not wait_until(answered, ANSWER_TIMEOUT):
            raise NoAnswer(f"no answer for {ANSWER_TIMEOUT} s\n{self._servers.log[-4000:]}")
        return max(found, key=lambda gap: gap.end - gap.begin)

    def _check_victim(self, name: str, process: SpawnProcess) -> None:
        """Waits until nothing is left of a client that died while no server ran."""
        assert process.exitcode is not None
        self._counts["victims"] += 1

        def gone() -> bool:
            with connect_admin(self._servers.runtime_dir) as admin:
                return all(lease.display_name != name for lease in admin.leases())

        if not wait_until(gone, RETURN_TIMEOUT):
            self._counts["victims_not_returned"] += 1
            sys.stderr.write(f"{name} is dead and has a lease\n")

    def _check_left(self) -> None:
        """Checks that the clients left nothing, but for the oracle's own lease without holds."""
        with connect_admin(self._servers.runtime_dir) as admin:

            def held() -> int:
                stats = admin.stats()
                slots = sum(
                    arena.slot_count - arena.free_slot_count - arena.cached_slot_count
                    for arena in stats.arenas
                )
                others = sum(lease.display_name != ORACLE for lease in stats.leases)
                return int(slots + stats.pin_count + stats.reservation_count + others)

            wait_until(lambda: held() == 0, SETTLE_TIMEOUT)
            self._counts["leaked_holds"] += held()

    def _read_log(self) -> None:
        for line in self._servers.news():
            if line["event"] == "store_recovered":
                self._recoveries.append(line)
            elif line["event"] == "clean_start":
                self._counts["clean_starts"] += 1
                sys.stderr.write(f"{line}\n")

    def _kill_victim(self) -> None:
        """Kills the client that dies in this round, unless it is dead or there is none."""
        if self._victim is not None:
            self._victim.kill()
            self._victim.join()

    def _reached(self, name: str) -> None:
        if name == RECOVERED:
            self._recovered_at = time.monotonic()
        else:
            self._kill_victim()
        if self._tables is None:
            return  # the first server
        # Otherwise pages would be evicted, and slots of lost pages freed, before the check.
        if name == RECOVERED:
            self._clients.shared.pausing.set()
        self._snapshots[name] = self._tables.snapshot()

    def _figures(self, counts: Counter[str]) -> dict[str, Any]:
        counts += self._counts
        counts["acknowledged_pages"] = self._acknowledged.row_count
        counts["wrong_pages"] += self._acknowledged.conflicts
        counts["log_tracebacks"] = self._servers.log.count("Traceback")
        first = (*ZEROS, *SUMS)
        return {
            "kills": self._rounds[KILL],
            "replacements": self._rounds[REPLACE],
            "stops": self._rounds[STOP],
            **{name: counts[name] for name in first},
            "without_answers_ms": {kind: _spread(each, 1e3) for kind, each in self._gaps.items()},
            "recovery_ms": _spread([each["seconds"] for each in self._recoveries], 1e3),
            "head_starts": Counter(each["head_start"] for each in self._recoveries),
            "recovered_pages": _spread([each["pages"] for each in self._recoveries], 1),
            "counts": {name: counts[name] for name in sorted(counts.keys() - set(first))},
        }


def failed(figures: dict[str, Any]) -> bool:
    """Returns whether something is wrong."""
    return any(figures[name] for name in ZEROS)


def _settings(tier_bytes: int) -> list[str]:
    return [
        *("--tier1-bytes", str(tier_bytes), "--extent-bytes", str(tier_bytes // EXTENTS)),
        *("--log-format", "json"),
    ]


def _kinds(plan: Plan) -> Iterator[str]:
    yield from [KILL] * plan.kills
    yield from [REPLACE] * plan.replacements
    yield from [STOP] * plan.stops


def _spread(values: list[float], scale: float) -> dict[str, float] | None:
    if not values:
        return None
    scaled = [value * scale for value in values]
    return {
        "median": round(statistics.median(scaled), 1),
        "least": round(min(scaled), 1),
        "largest": round(max(scaled), 1),
    }
