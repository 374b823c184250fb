"""The cost of KV events: whole requests over a lane, with events on beside off.

Three stores take turns in one run. One publishes no events. One publishes them to a subscriber
that reads all of them. One publishes them to a subscriber that reads none.
"""

import json
import multiprocessing
import sys
import time
from array import array
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from statistics import median, quantiles
from typing import Annotated, Any

import typer
import zmq
from rich.table import Table

from kvstore_client.testing import RunningStore, running_store, wait_until
from support import machine
from support.rpc.worker import PAGE_BYTES, PAGE_TOKENS, Worker, attached_worker, page_count
from support.table_console import table_console

TOKENS = 1_024
# Tokens of each prompt that all prompts begin with.
SHARED = 512
# Room for some prompts, so that each request evicts the pages of an earlier one.
SLOTS = 8 * TOKENS // PAGE_TOKENS
FULL, QUICK = (40, 0.5), (2, 0.05)
OFF = "off"
MODES = (OFF, "read", "not read")
CALLS = ("acquire", "insert", "give back", "request")
# Milliseconds in which a subscriber that reads looks for its end.
LOOK = 200


def subscribe(address: str, *, reads: bool, ready: Any) -> None:  # noqa: ANN401 - an event of a context
    """Subscribes in a process of its own until that is killed."""
    with zmq.Context() as context, context.socket(zmq.SUB) as socket:
        socket.setsockopt(zmq.SUBSCRIBE, b"")
        if not reads:
            socket.rcvhwm = 1
        socket.connect(address)
        ready.set()
        while True:
            if reads and socket.poll(LOOK):
                socket.recv_multipart()
            elif not reads:
                time.sleep(LOOK)


@contextmanager
def subscribed(address: str, *, reads: bool) -> Iterator[None]:
    """Runs a subscriber."""
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    process = context.Process(
        target=subscribe, args=(address,), kwargs={"reads": reads, "ready": ready}, daemon=True
    )
    process.start()
    try:
        assert ready.wait(60), "the subscriber does not start"
        yield
    finally:
        process.kill()
        process.join()


class Requests:
    """Requests of one store: a part of each prompt is cached, the rest is inserted."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._fresh = count(1 << 20, TOKENS)

    def run(self, seconds: float) -> dict[str, list[float]]:
        """Makes requests for a while; returns the seconds of each call, and of all together."""
        times: dict[str, list[float]] = {name: [] for name in CALLS}
        end = time.perf_counter() + seconds
        while not times["request"] or time.perf_counter() < end:
            took = self._request()
            for name, each in zip(CALLS, (*took, sum(took)), strict=True):
                times[name].append(each)
        return times

    def _request(self) -> tuple[float, float, float]:
        first = next(self._fresh)
        shared, own = range(SHARED), range(first, first + TOKENS - SHARED + 1)
        tokens = array("I", (*shared, *own)).tobytes()
        began = time.perf_counter()
        pin_id, reservation_id, answer = self._worker.acquired(tokens)
        acquired = time.perf_counter()
        known = answer.match.matched_token_count
        end = page_count(tokens) * PAGE_TOKENS
        self._worker.insert(
            reservation_id, tokens[4 * known : 4 * end], known, pin_id if known else 0
        )
        inserted = time.perf_counter()
        self._worker.abort(reservation_id)
        self._worker.release(pin_id, pin_id + 2)
        return acquired - began, inserted - acquired, time.perf_counter() - inserted


def measure(rounds: int, seconds: float) -> dict[str, Any]:
    """Returns the times of requests in each mode, and ratios to the first, round by round."""
    found: dict[str, list[dict[str, list[float]]]] = {mode: [] for mode in MODES}
    with ExitStack() as stack:
        stores = {mode: stack.enter_context(store_of(mode)) for mode in MODES}
        ways = {mode: stack.enter_context(requests_of(each)) for mode, each in stores.items()}
        for mode in MODES[1:]:
            stack.enter_context(
                subscribed(f"ipc://{events_socket(stores[mode])}", reads=mode == "read")
            )
        for number in range(rounds + 1):
            for turn in range(len(MODES)):
                mode = MODES[(number + turn) % len(MODES)]
                times = ways[mode].run(seconds)
                # The first round warms up.
                if number:
                    found[mode].append(times)
    return {call: figures({m: [r[call] for r in of] for m, of in found.items()}) for call in CALLS}


@contextmanager
def store_of(mode: str) -> Iterator[RunningStore]:
    """Runs a store in a mode."""
    size = str(SLOTS * PAGE_BYTES)
    more = () if mode == OFF else ("--kv-events",)
    with running_store("--tier1-bytes", size, "--extent-bytes", size, *more) as store:
        yield store


@contextmanager
def requests_of(store: RunningStore) -> Iterator[Requests]:
    """Attaches a worker with a lane, whose first request gives the store pages."""
    with attached_worker(store.runtime_dir, hot_lane=True) as worker:
        requests = Requests(worker)
        requests.run(0)
        yield requests


def events_socket(store: RunningStore) -> Path:
    """Returns the socket of the events of the one tenant of a store, once it is there."""
    folder = store.runtime_dir / "kv-events"
    assert wait_until(lambda: any(folder.glob("*.pub"))), "no events are published"
    return next(folder.glob("*.pub"))


def figures(rounds: dict[str, list[list[float]]]) -> dict[str, Any]:
    """Returns a call's median in each mode, in microseconds, and its ratio to the first mode."""
    medians = {mode: [median(each) for each in of] for mode, of in rounds.items()}
    found = {}
    for mode, of in medians.items():
        ratios = [a / b for a, b in zip(of, medians[OFF], strict=True)]
        low, middle, high = quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
        found[mode] = {
            "median_us": round(median(of) * 1e6, 1),
            "ratio": round(middle, 3),
            "ratio_q1": round(low, 3),
            "ratio_q3": round(high, 3),
        }
    return found


def main(
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON value.")] = False,
    quick: Annotated[bool, typer.Option(help="Take seconds. The figures mean nothing.")] = False,
) -> None:
    """Measures requests with and without KV events."""
    before = machine.load_average()
    rounds, seconds = QUICK if quick else FULL
    document = {
        "machine": machine.machine_facts(),
        "load_average": {"before": before},
        "method": {
            "tokens": TOKENS,
            "shared_tokens": SHARED,
            "pages_inserted_and_evicted": (TOKENS - SHARED) // PAGE_TOKENS,
            "rounds": rounds,
            "seconds_a_turn": seconds,
            "times": "of one caller over a lane, in seconds of the clock",
        },
        "calls": measure(rounds, seconds),
    }
    document["load_average"]["after"] = machine.load_average()
    if as_json:
        sys.stdout.write(json.dumps(document, indent=1) + "\n")
        return
    table = Table("call", *MODES, title="microseconds, and ratio to off")
    for call, modes in document["calls"].items():
        table.add_row(call, *(f"{each['median_us']} ({each['ratio']})" for each in modes.values()))
    table_console().print(table)


if __name__ == "__main__":
    typer.run(main)
