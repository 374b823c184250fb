"""The cost of KV events: whole requests over a lane, with events on beside off.

Three stores take turns in one run. One publishes no events. One publishes them to a subscriber
that reads all of them. One publishes them to a subscriber that reads none.
"""

import json
import multiprocessing
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
import zmq
from rich.table import Table

from kvstore_client.testing import RunningStore, running_store, wait_until
from support import machine
from support.rpc.requests_in_turns import METHOD, STORE_BYTES, in_turns, requests_of
from support.table_console import table_console

FULL, QUICK = (40, 0.5), (2, 0.05)
OFF = "off"
MODES = (OFF, "read", "not read")
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


def measure(rounds: int, seconds: float) -> dict[str, Any]:
    """Returns the times of requests in each mode, and ratios to the first, round by round."""
    with ExitStack() as stack:
        stores = {mode: stack.enter_context(store_of(mode)) for mode in MODES}
        ways = {mode: stack.enter_context(requests_of(each)) for mode, each in stores.items()}
        for mode in MODES[1:]:
            stack.enter_context(
                subscribed(f"ipc://{events_socket(stores[mode])}", reads=mode == "read")
            )
        return in_turns(ways, rounds, seconds)


@contextmanager
def store_of(mode: str) -> Iterator[RunningStore]:
    """Runs a store in a mode."""
    size = str(STORE_BYTES)
    more = () if mode == OFF else ("--kv-events",)
    with running_store("--tier1-bytes", size, "--extent-bytes", size, *more) as store:
        yield store


def events_socket(store: RunningStore) -> Path:
    """Returns the socket of the events of the one tenant of a store, once it is there."""
    folder = store.runtime_dir / "kv-events"
    assert wait_until(lambda: any(folder.glob("*.pub"))), "no events are published"
    return next(folder.glob("*.pub"))


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
        "method": {**METHOD, "rounds": rounds, "seconds_a_turn": seconds},
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
