"""A remote tier over Valkey: its speed beside bytes alone and LMCache, and what it costs calls.

Every way moves the same pages to one server and back, in turns. The second part measures calls on
lanes beside a store that moves sealed pages all the time. It also measures them beside another
store's traffic, which shares no interpreter with the calls.
"""

import json
import signal
import sys
import tempfile
from contextlib import ExitStack
from enum import StrEnum
from pathlib import Path
from typing import IO, Annotated, Any

import typer
from rich.table import Table

from inference_worker.demo.valkey_server import ValkeyServer, running_valkey
from kvstore.remote.valkey.address import EngineAddress
from kvstore.server import SWITCH_SECONDS
from peers.environment import interpreter
from peers.lmcache_redis_peer import THREADS, VERSION, LMCacheRedis, lmcache_redis
from support import machine
from support.loopback import HOST, free_ports
from support.remote.beside import ALONE, BESIDE, ELSEWHERE, measure_beside
from support.remote.cipher_way import CipherWay
from support.remote.pages import PageMemory
from support.remote.rounds import LOOKS, Rounds, Samples, figures, ratio
from support.remote.tier_way import TierWay
from support.remote.ways import EngineWay, RawWay, Way
from support.table_console import table_console
from support.tails.figures import QUANTILES

PAGES, PAGE_BYTES = 64, 1 << 20
MEMORY = "1gb"
CEILINGS = ("raw, 1 connection", "raw, 2 connections")
CIPHER = "raw with the cipher, 2 connections"
UNSEALED, SEALED = "unsealed", "sealed"
# Rounds of transfers and of looks, and rounds and seconds of the calls beside them.
FULL, QUICK = (15, 7, 8, 8.0), (3, 2, 2, 2.0)


class Part(StrEnum):
    """A part of the benchmark."""

    TRANSFERS = "transfers"
    CALLS = "calls"


def measure(
    folder: Path, rounds: int, look_rounds: int, log: IO[bytes], *, peers: bool
) -> dict[str, Samples]:
    """Returns the samples of each way."""
    source = PageMemory(PAGES, PAGE_BYTES)
    source.fill()
    with ExitStack() as stack:
        [port] = free_ports(1)
        server = stack.enter_context(
            running_valkey(folder / "ways", log=log, memory=MEMORY, port=port)
        )
        ways = _ways(folder, port, stack)
        theirs = _peers(folder, server, source, log, stack) if peers else {}
        every = Rounds(server, ways, theirs, source)
        every.run(rounds)
        every.look(look_rounds)
        return every.samples


def _ways(folder: Path, port: int, stack: ExitStack) -> dict[str, Way]:
    address = EngineAddress(None, HOST, port)
    ways: dict[str, Way] = {
        CEILINGS[0]: RawWay((HOST, port), 1),
        CEILINGS[1]: RawWay((HOST, port), 2),
        CIPHER: CipherWay((HOST, port), 2),
        UNSEALED: EngineWay(address),
        SEALED: TierWay(address, folder),
    }
    for each in ways.values():
        stack.callback(each.close)
    return ways


def _peers(
    folder: Path, server: ValkeyServer, source: PageMemory, log: IO[bytes], stack: ExitStack
) -> dict[str, LMCacheRedis]:
    python = interpreter("lmcache")
    if python is None:
        sys.stderr.write("LMCache is left out: make bench-peers sets up its environment\n")
        return {}
    found = {}
    for threads in THREADS:
        peer = stack.enter_context(lmcache_redis(python, log))
        peer.open(server.port, threads, source.pages, folder / "payload")
        found[f"LMCache, {threads} threads"] = peer
    return found


def table_of(ways: dict[str, Any]) -> Table:
    """Returns the figures of the transfers for people."""
    looks = [f"look {count}, ms" for count in LOOKS]
    table = Table("way", "", "GB/s", "to raw", "client s/GB", "server s/GB", *looks)
    for name, way in ways.items():
        for what in ("write", "read"):
            of = way[what]
            keys = ("gb_per_s", "to_ceiling", "client_cpu_s_per_gb", "server_cpu_s_per_gb")
            shown = [str(way["look_ms"].get(str(count), "")) for count in LOOKS]
            cells = shown if what == "read" else [""] * len(shown)
            table.add_row(name, what, *(str(of[key]) for key in keys), *cells)
    return table


def table_beside(found: dict[str, Any]) -> Table:
    """Returns the figures of the calls for people."""
    rates = " and ".join(str(each) for each in found["traffic_gb_per_s"].values())
    title = f"microseconds, beside {rates} GB/s"
    table = Table("call", "way", *QUANTILES, "max", title=title)
    for call in found[ALONE]:
        for way in (ALONE, BESIDE, ELSEWHERE):
            of = found[way][call]
            table.add_row(call, way, *(f"{of[f'{key}_us']:,.0f}" for key in (*QUANTILES, "max")))
        for way in (BESIDE, ELSEWHERE):
            ratios = found["ratios"][way][call]
            table.add_row(call, f"{way}, ratio", *(str(ratios[key]) for key in QUANTILES), "")
    return table


def main(
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON value.")] = False,
    quick: Annotated[bool, typer.Option(help="Take half a minute, with rougher figures.")] = False,
    rounds: Annotated[int, typer.Option(help="Rounds of the transfers.")] = 0,
    only: Annotated[Part | None, typer.Option(help="Measure one part alone.")] = None,
    peers: Annotated[bool, typer.Option(help="Measure LMCache too, if it is set up.")] = True,
) -> None:
    """Measures reads, writes and looks of a remote tier on a Valkey of its own."""
    # SIGTERM acts like Ctrl-C, so that everything that was started is stopped.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    # All ways have the server's interval: threads of ciphers and sockets often need the lock.
    sys.setswitchinterval(SWITCH_SECONDS)
    usual = QUICK if quick else FULL
    before = machine.load_average()
    with tempfile.TemporaryDirectory(prefix="kvremote-") as folder:
        place = Path(folder)
        with (place / "log").open("wb") as log:
            ways = beside = None
            if only is not Part.CALLS:
                samples = measure(place, rounds or usual[0], usual[1], log, peers=peers)
                ways = figures(samples, PAGES * PAGE_BYTES, CEILINGS)
                for what in ("write", "read"):
                    to_cipher = ratio(samples[CIPHER], samples[SEALED], what)
                    ways[SEALED][what]["to_cipher"] = to_cipher
            if only is not Part.TRANSFERS:
                beside = measure_beside(place, log, rounds=rounds or usual[2], seconds=usual[3])
    document = {
        "benchmark": "remote",
        "machine": machine.machine_facts(),
        "load_average": {"before": before, "after": machine.load_average()},
        "method": {
            "pages": PAGES,
            "page_bytes": PAGE_BYTES,
            "rounds": rounds or usual[0],
            "look_rounds": usual[1],
            "line": "TCP on loopback",
            "peer": f"lmcache {VERSION}, its resp:// client without the copies of torch",
            "figure": "medians of rounds in turns; raw_s: all of them",
        },
        "ways": ways,
        "calls": beside,
    }
    if as_json:
        sys.stdout.write(json.dumps(document, indent=1) + "\n")
        return
    if ways:
        table_console().print(table_of(ways))
    if beside:
        table_console().print(table_beside(beside))


if __name__ == "__main__":
    typer.run(main)
