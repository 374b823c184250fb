"""The holder: microseconds to deposit descriptors, to get them back, and to make extents."""

import json
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from kvstore.holder.holder_client import HolderClient, start_holder
from kvstore.holder.holder_process import REQUIRED_SEALS, close_all, new_memfd
from kvstore.storage.arenas import Arenas
from kvstore.storage.held_memory import HeldMemory
from kvstore.storage.host.host_memory import HostMemory
from kvstore.storage.host.memfd import ENOUGH_THREADS
from support import machine

DESCRIPTORS = 3000
DEPOSITS = 1000
MEMORY_BYTES = 256 << 20
PAGE_BYTES = 2 << 20
Answer = TypeVar("Answer")


@contextmanager
def holder_client() -> Iterator[tuple[HolderClient, int]]:
    """Yields an owner's client of a holder of its own, and the holder's pid."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, "holder")
        client = HolderClient(folder, start=lambda: start_holder(folder))
        client.own(1)
        with closing(client):
            yield client, int((folder / "holder.flock").read_text())
            client.end()


class Timer:
    """Wall time and processor time of actions, by name."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._rows: dict[str, list[tuple[float, ...]]] = {}

    def run(self, name: str, action: Callable[[], Answer]) -> Answer:
        """Does an action, and notes how long it took here and in the holder."""
        start = self._now()
        answer = action()
        self._rows.setdefault(name, []).append(
            tuple(end - begin for end, begin in zip(self._now(), start, strict=True))
        )
        return answer

    def summary(self, name: str, unit_seconds: float) -> dict[str, float]:
        """Returns figures for one unit of work; the holder's clock has ticks of 10 ms."""
        wall, own, holders = zip(*self._rows[name], strict=True)
        figures = {
            "median": statistics.median(wall),
            "best": min(wall),
            "own_processor": statistics.mean(own),
            "holder_processor": statistics.mean(holders),
        }
        return {key: round(value / unit_seconds, 2) for key, value in figures.items()}

    def _now(self) -> tuple[float, float, float]:
        return time.perf_counter(), time.process_time(), machine.cpu_seconds(self._pid)


def extents(carrier: HolderClient | None, memory_bytes: int, threads: int) -> Arenas:
    """Returns a tier of one extent, which the carrier makes, or this process without one."""
    source = HostMemory(held=HeldMemory(carrier), threads=threads)
    return Arenas(budget_bytes=memory_bytes, extent_bytes=memory_bytes, source=source)


def measure(rounds: int, memory_bytes: int) -> dict[str, Any]:
    """Returns figures of actions that the holder answered, in turns."""
    memory = {f"extent-{n}": new_memfd("holder", 4096, REQUIRED_SEALS) for n in range(DESCRIPTORS)}
    with holder_client() as (client, pid):
        timer = Timer(pid)
        ways = {
            f"extent_{name}{kind}": extents(carrier, memory_bytes, threads)
            for name, carrier in (("here", None), ("by_holder", client))
            for kind, threads in (("", 1), ("_mapped", ENOUGH_THREADS))
        }

        def deposit_one(descriptor: int) -> None:
            for _ in range(DEPOSITS):
                client.put({"process-1": descriptor})

        for _ in range(rounds):
            timer.run("put_all", lambda: client.put(memory))
            found = timer.run("get_all", client.descriptors)
            close_all(each.descriptor for each in found.values())
            client.drop(memory)
            timer.run("put_one", lambda: deposit_one(memory["extent-1"]))
            client.drop(["process-1"])
            os.close(timer.run("make", lambda: client.make("made", memory_bytes)))
            client.drop(["made"])
            for name, arenas in ways.items():
                made = timer.run(name, partial(arenas.allocate, 1, PAGE_BYTES))
                arenas.destroy(made.shape.extent_id)
        resident = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    close_all(memory.values())
    return {
        "descriptors": DESCRIPTORS,
        "put_all_ms": timer.summary("put_all", 1e-3),
        "get_all_ms": timer.summary("get_all", 1e-3),
        "put_one_us": timer.summary("put_one", 1e-6 * DEPOSITS),
        **{
            f"{name}_ms_per_gib": timer.summary(name, 1e-3 * memory_bytes / (1 << 30))
            for name in ("make", *ways)
        },
        "resident_kib": next(int(line.split()[1]) for line in resident if "VmRSS" in line),
    }


def main(
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    quick: Annotated[bool, typer.Option(help="Three rounds, with little memory.")] = False,
    rounds: Annotated[int, typer.Option(min=1, help="Number of rounds.")] = 30,
) -> None:
    """Measures deposits of 3,000 descriptors, single deposits, and extents made by the holder."""
    before = machine.load_average()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    found = measure(3 if quick else rounds, MEMORY_BYTES // 4 if quick else MEMORY_BYTES)
    document = {
        **found,
        "load_average": {"before": before, "after": machine.load_average()},
        "machine": machine.machine_facts(),
    }
    if as_json:
        sys.stdout.write(json.dumps(document) + "\n")
    else:
        for key, value in found.items():
            sys.stdout.write(f"{key:24} {value}\n")


if __name__ == "__main__":
    typer.run(main)
