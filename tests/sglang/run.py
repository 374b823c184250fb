"""Runs real SGLang on a real store: each case's tokens are those of SGLang without one.

Run it in the environment that environment.py sets up. Ends with status 0 only if all is right.
"""

import argparse
import json
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from cases.deaths import deaths, learn_deaths
from cases.events import events, learn_events
from cases.eviction import NARROW_BYTES, WIDE_BYTES, eviction, learn_eviction
from cases.faults import faults, learn_faults
from cases.hicache import hicache
from cases.refusals import refusals
from cases.set_ups import adapters, ranks, set_ups
from cases.sharing import learn_sharing, sharing
from cases.weights import weights
from rig.options import ServerOptions
from rig.world import World, world

from engine_cases.models import save_model
from engine_cases.store import store
from engine_cases.table import Table


def _sharing(here: World) -> None:
    with store(here.folder / "shared", "--tier1-bytes", WIDE_BYTES) as shared:
        sharing(here, shared)


def _eviction(here: World) -> None:
    with (
        store(here.folder / "wide", "--tier1-bytes", WIDE_BYTES) as wide,
        store(here.folder / "narrow", "--tier1-bytes", NARROW_BYTES) as narrow,
    ):
        eviction(here, wide, narrow)


def _deaths(here: World) -> None:
    with store(here.folder / "mortal", "--tier1-bytes", WIDE_BYTES, start=False) as mortal:
        deaths(here, mortal)


def _faults(here: World) -> None:
    with store(here.folder / "faulty", "--tier1-bytes", WIDE_BYTES) as shared:
        faults(here, shared)


def _refusals(here: World) -> None:
    with store(here.folder / "refusing", "--tier1-bytes", WIDE_BYTES) as shared:
        refusals(here, shared)


# Groups of cases of one dense model.
DENSE: dict[str, Callable[[World], None]] = {
    "sharing": _sharing,
    "eviction": _eviction,
    "events": events,
    "faults": _faults,
    "deaths": _deaths,
    "hicache": hicache,
    "refusals": _refusals,
}
# The prompts of those groups, which one server without a store answers before them.
LEARNED: dict[str, Callable[[World], None]] = {
    "sharing": learn_sharing,
    "eviction": learn_eviction,
    "events": learn_events,
    "faults": learn_faults,
    "deaths": learn_deaths,
    "hicache": learn_sharing,
}
# Groups with models of their own.
OWN_MODELS: dict[str, Callable[[Path, Table], None]] = {
    "weights": weights,
    "adapters": adapters,
    "ranks": ranks,
    "set-ups": set_ups,
}


def run(wanted: list[str], folder: Path, table: Table) -> None:
    """Runs groups of cases."""
    dense = [name for name in wanted if name in DENSE]
    if dense:
        qwen3 = ServerOptions(save_model("qwen3", folder / "qwen3"))
        here = world(folder, qwen3, table)
        learned = [LEARNED[name] for name in dense if name in LEARNED]
        if learned:
            with table.group("reference"), here.reference.running():
                for learn in learned:
                    learn(here)
        for name in dense:
            with table.group(name):
                DENSE[name](here)
    for name in wanted:
        if name in OWN_MODELS:
            OWN_MODELS[name](folder, table)


def main() -> int:
    """Runs the cases, and returns 0 only if all are right."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="two servers on one store alone")
    parser.add_argument(
        "--only", choices=[*DENSE, *OWN_MODELS], action="append", help="these groups of cases"
    )
    parser.add_argument("--keep", type=Path, help="a new folder for the logs, which is kept")
    parser.add_argument("--json", type=Path, help="a file for all cases")
    arguments = parser.parse_args()
    wanted = arguments.only or (["sharing"] if arguments.small else [*DENSE, *OWN_MODELS])
    # As Ctrl-C: everything that was started is stopped on the way out.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    table = Table()
    began = time.perf_counter()
    with ExitStack() as stack:
        folder = arguments.keep
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kv-sglang-")))
        folder.mkdir(parents=True, exist_ok=True)
        run(wanted, folder, table)
    if arguments.json:
        found = [asdict(case) for case in table.cases]
        arguments.json.write_text(json.dumps(found), encoding="utf-8")
    wrong = sum(bool(case.wrong) for case in table.cases)
    took = time.perf_counter() - began
    print(f"{len(table.cases)} cases, {wrong} wrong, {took:.0f} s")
    return 0 if table.right else 1


if __name__ == "__main__":
    sys.exit(main())
