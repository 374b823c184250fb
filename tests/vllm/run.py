"""Runs real vLLM on a real store: each case's tokens are those of vLLM without a connector.

Run it in the environment that environment.py sets up. Ends with status 0 only if all is right.
"""

import argparse
import json
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path

from cases.adapters import adapters
from cases.attempts import attempts
from cases.chunks import ASKED as CHUNKED_PROMPTS
from cases.chunks import CHUNKED, chunks, narrow_chunks
from cases.chunks import STORE_BYTES as CHUNK_BYTES
from cases.deaths import absent, hung, killed
from cases.events import events
from cases.failing import SHARE, failing_loads, wrong_page
from cases.hints import STORE_BYTES as HINTED_BYTES
from cases.hints import hinted
from cases.hybrids import HYBRID_BYTES, WINDOW, hybrids, narrow_hybrids
from cases.narrow import DEVICE_PAGES, STORE_BYTES, narrow, preempted
from cases.ranks import CANONICAL, OTHERS, apart, rank_counts, ranks
from cases.servers import replicas, servers
from cases.setups import SETUPS
from cases.sharing import first_engine, second_engine
from cases.weights import weights
from rig.engine import prepare
from rig.options import CONNECTORS, OFFLOADING, EngineOptions
from rig.world import World, world

from engine_cases.models import save_adapter, save_model
from engine_cases.store import store
from engine_cases.table import Table

CACHE = Path(sys.prefix) / "cache"
# Groups of cases of one dense model.
DENSE = ("sharing", "failing", "narrow", "deaths", "servers", "events", "chunks")


def sharing(here: World, *, small: bool) -> None:
    """One store, two engines at a time, and engines whose loads fail."""
    with ExitStack() as stack:
        shared = stack.enter_context(store(here.folder / "shared", "--tier1-bytes", "512MiB"))
        first = stack.enter_context(here.engine("first", shared))
        first_engine(here, shared, first, small=small)
        second = stack.enter_context(
            here.engine("second", shared, local_prefix_cache=True, extra={"load_async": False})
        )
        second_engine(here, shared, second, small=small)


def failing(here: World) -> None:
    """Engines whose loads fail, beside and in their steps."""
    with store(here.folder / "failing", "--tier1-bytes", "512MiB") as shared:
        for load_async, name in ((True, "asynchronous"), (False, "synchronous")):
            extra = {"fault_load_fraction": SHARE, "load_async": load_async}
            with here.engine(
                f"failing-{name}",
                shared,
                extra=extra,
                local_prefix_cache=True,
            ) as engine:
                failing_loads(here, shared, engine, name)
        with here.engine("faulty", shared, wrong_page=True) as engine:
            wrong_page(here, shared, engine, "a wrong page in each load: seen")


def deaths(here: World) -> None:
    """An engine whose store is absent, hangs and is killed."""
    with (
        store(here.folder / "mortal", "--tier1-bytes", "256MiB", start=False) as mortal,
        here.engine("bereaved", mortal, extra={"lookup_timeout": 0.25}) as engine,
    ):
        absent(here, mortal, engine)
        hung(here, mortal, engine)
        killed(here, mortal, engine)


def narrowness(here: World) -> None:
    """A store and an engine with little memory."""
    with (
        store(here.folder / "narrow", "--tier1-bytes", STORE_BYTES) as tight,
        here.engine("narrow", tight, device_pages=DEVICE_PAGES) as engine,
    ):
        narrow(here, tight, engine)
    with (
        store(here.folder / "hinted", "--tier1-bytes", HINTED_BYTES) as tight,
        here.engine("hinted", tight) as engine,
    ):
        hinted(here, tight, engine)
    if here.offloads:
        # vLLM's connector knows no running requests that load, and so are preempted.
        within = {"load_async": False}
        with (
            store(here.folder / "within", "--tier1-bytes", "64MiB") as shared,
            here.engine(
                "within", shared, device_pages=DEVICE_PAGES, extra=within, local_prefix_cache=True
            ) as engine,
        ):
            preempted(here, shared, engine, "preempted, with loads within a step")
        return
    with (
        store(here.folder / "late", "--tier1-bytes", "64MiB") as shared,
        here.engine("late", shared, device_pages=DEVICE_PAGES, late_saves=True) as engine,
    ):
        preempted(here, shared, engine, "preempted, with copies beside later steps")


def served(here: World) -> None:
    """Two of vLLM's own servers."""
    with store(here.folder / "served", "--tier1-bytes", "512MiB") as shared:
        servers(here, shared)


def chunked(here: World) -> None:
    """Engines whose pages are several blocks, which the other connector does not make."""
    if not here.offloads:
        return
    with store(here.folder / "chunked", "--tier1-bytes", "512MiB") as shared:
        with (
            here.engine("chunked-first", shared, extra=CHUNKED) as first,
            here.engine("chunked-second", shared, extra=CHUNKED, local_prefix_cache=True) as second,
        ):
            chunks(here, shared, first, second)
        with here.engine("chunked-faulty", shared, extra=CHUNKED, wrong_page=True) as engine:
            name = "pages of 3 blocks: a wrong page is seen"
            wrong_page(here, shared, engine, name, CHUNKED_PROMPTS[3:])
    with (
        store(here.folder / "chunked-narrow", "--tier1-bytes", CHUNK_BYTES) as tight,
        here.engine("chunked-narrow", tight, extra=CHUNKED) as engine,
    ):
        narrow_chunks(here, tight, engine)


def adapted(here: World) -> None:
    """Another model, and LoRA."""
    with (
        store(here.folder / "adapted", "--tier1-bytes", "512MiB") as shared,
        here.engine("adapted", shared) as engine,
    ):
        adapters(here, shared, engine)


def halved(here: World) -> None:
    """An engine of two ranks."""
    with (
        store(here.folder / "halved", "--tier1-bytes", "512MiB") as shared,
        here.engine("halved", shared) as engine,
    ):
        ranks(here, shared, engine)


def shared_by_ranks(here: World) -> None:
    """Engines of one rank and of two on the same pages, and one that keeps apart."""
    with store(here.folder / "ranks", "--tier1-bytes", "512MiB") as shared:
        with (
            here.engine("one-rank", shared, extra=CANONICAL) as one,
            here.engine("two-ranks", shared, extra=CANONICAL, ranks=2) as two,
        ):
            rank_counts(here, shared, one, two)
        with here.engine("two-apart", shared, ranks=2) as engine:
            apart(here, shared, engine)
        with here.engine("rank-faulty", shared, extra=CANONICAL, wrong_page=True) as engine:
            name = f"canonical, {here.options.model.name}: a wrong page is seen"
            wrong_page(here, shared, engine, name, OTHERS)


def hybrid(here: World) -> None:
    """Two engines of a model with sliding windows, in vLLM's hybrid memory."""
    with (
        store(here.folder / "hybrid", "--tier1-bytes", "512MiB") as shared,
        here.engine("hybrid-first", shared) as first,
        here.engine("hybrid-second", shared, local_prefix_cache=True) as second,
    ):
        hybrids(here, shared, first, second)
    with (
        store(here.folder / "hybrid-narrow", "--tier1-bytes", HYBRID_BYTES) as tight,
        here.engine("hybrid-narrow", tight) as engine,
    ):
        narrow_hybrids(here, tight, engine)


def dense(
    wanted: list[str], folder: Path, table: Table, *, small: bool, connectors: Sequence[str]
) -> None:
    """Runs groups of cases that share one engine without a connector."""
    groups: dict[str, Callable[[World], None]] = {
        "sharing": partial(sharing, small=small),
        "failing": failing,
        "narrow": narrowness,
        "deaths": deaths,
        "servers": served,
        "events": events,
        "chunks": chunked,
    }
    names = [name for name in wanted if name in groups]
    if not names:
        return
    qwen3 = EngineOptions(save_model("qwen3", folder / "qwen3"))
    with table.group("Qwen3"), world(folder, qwen3, table) as plain:
        for here in map(plain.with_connector, connectors):
            for name in names:
                with table.group(name):
                    groups[name](here)


def with_adapters(folder: Path, table: Table, connectors: Sequence[str]) -> None:
    """Runs the cases of another model, and of LoRA."""
    llama = save_model("llama", folder / "llama")
    both = tuple(save_adapter(llama, folder / f"adapter-{n}", n) for n in (1, 2))
    options = EngineOptions(llama, adapters=both)
    with table.group("adapters"), world(folder, options, table) as plain:
        for connector in connectors:
            adapted(plain.with_connector(connector))


def with_hybrid_memory(folder: Path, table: Table, connectors: Sequence[str]) -> None:
    """Runs the cases of vLLM's hybrid memory; the other connector takes no groups."""
    if OFFLOADING in connectors:
        gemma3 = save_model("gemma3", folder / "gemma3", sliding_window=WINDOW)
        with table.group("hybrids"), world(folder, EngineOptions(gemma3), table) as plain:
            hybrid(plain.with_connector(OFFLOADING))


def with_ranks(folder: Path, table: Table, connectors: Sequence[str]) -> None:
    """Runs the cases of engines of two ranks."""
    options = EngineOptions(save_model("qwen3", folder / "qwen3-halved"), ranks=2)
    with table.group("ranks"), world(folder, options, table) as plain:
        for connector in connectors:
            halved(plain.with_connector(connector))
    if OFFLOADING in connectors:
        gemma3 = save_model("gemma3", folder / "gemma3-halved", sliding_window=WINDOW)
        options = EngineOptions(gemma3, ranks=2)
        with table.group("hybrid ranks"), world(folder, options, table) as plain:
            halved(plain.with_connector(OFFLOADING))
        for folder_name, tiny in (("qwen3-halved", "Qwen3"), ("gemma3-halved", "Gemma 3")):
            options = EngineOptions(folder / folder_name)
            with table.group(f"canonical, {tiny}"), world(folder, options, table) as plain:
                shared_by_ranks(plain.with_connector(OFFLOADING))


# Groups with models of their own, each with what it needs of engines without a connector.
OWN_MODELS: dict[str, Callable[[Path, Table, Sequence[str]], None]] = {
    "adapters": with_adapters,
    "ranks": with_ranks,
    "hybrids": with_hybrid_memory,
    **SETUPS,
    "weights": weights,
    "replicas": replicas,
    "attempts": attempts,
}


def run(
    wanted: list[str], folder: Path, table: Table, *, small: bool, connectors: Sequence[str]
) -> None:
    """Runs groups of cases with each connector, and with engines without one."""
    dense(wanted, folder, table, small=small, connectors=connectors)
    for name in wanted:
        if name in OWN_MODELS:
            OWN_MODELS[name](folder, table, connectors)


def main() -> int:
    """Runs the cases, and returns 0 only if all are right."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="cold, hit, partial, two engines")
    parser.add_argument(
        "--only", choices=[*DENSE, *OWN_MODELS], action="append", help="these groups of cases"
    )
    parser.add_argument("--connector", choices=CONNECTORS, action="append", help="these alone")
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
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kv-vllm-")))
        folder.mkdir(parents=True, exist_ok=True)
        prepare(CACHE, folder / "imports.log")
        connectors = arguments.connector or CONNECTORS
        run(wanted, folder, table, small=arguments.small, connectors=connectors)
    if arguments.json:
        found = [asdict(case) for case in table.cases]
        arguments.json.write_text(json.dumps(found), encoding="utf-8")
    wrong = sum(bool(case.wrong) for case in table.cases)
    took = time.perf_counter() - began
    print(f"{len(table.cases)} cases, {wrong} wrong, {took:.0f} s")
    return 0 if table.right else 1


if __name__ == "__main__":
    sys.exit(main())
