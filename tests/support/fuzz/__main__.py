"""Nonsense to every RPC, to the attach socket and over lanes: what a server takes without harm.

A server runs as it always does. One process makes calls to every method, with drawn
and damaged requests, metadata and deadlines; another sends drawn and damaged frames
to the attach socket, with descriptors nobody asked for, halves of messages, a hundred
connections that say nothing, and calls over lanes. Both have a worker's living lease and
namespace, so that much of it is nearly right. Exit status 1 where anything was wrong.
"""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from random import Random, SystemRandom
from typing import Annotated, Any

import grpc
import typer
from rich.console import Console
from rich.progress import Progress

from fuzz.attach import AttachPeers
from fuzz.calls import Caller
from fuzz.foothold import Foothold
from fuzz.lane import LanePeers
from fuzz.messages import Messages
from fuzz.server import Taken, complaints
from kvstore_client.runtime_dir import RuntimeDir
from kvstore_client.testing import RunningStore, running_store
from support import machine

QUICK = 20_000
# Of ten inputs, so many are calls.
CALLS = 3
# Inputs between two looks at the lease, and at what the server takes.
TURN = 500
# Of ten connections to the attach socket, so many are lanes.
LANES = 3
LOOKS = 20
# The server's memory may not grow by more than this from half of the inputs to the end: as a
# share, and in KiB. Tombstones live for two minutes, in a table that is bounded: a run of less
# than four minutes ends before they have come to rest, and may say more.
GROWTH = 1.05
SLACK_KIB = 8 << 10
SEED_BITS = 32
# The peers' process is given this long to end, in seconds, after the calls are done.
TAIL = 1800.0


def call(folder: Path, seed: int, count: int, look: Any) -> tuple[Counter[str], list[str]]:  # noqa: ANN401
    """Makes ``count`` calls; ``look`` is called after each turn with how many were made."""
    random = Random(seed)  # to be repeated, not to be unpredictable
    outcomes: Counter[str] = Counter()
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_metadata_size", 1 << 20)]
    with grpc.insecure_channel(RuntimeDir(folder).grpc_target, options=options) as channel:
        foothold = Foothold(RuntimeDir(folder), channel)
        messages = Messages(random, foothold.known)
        caller = Caller(channel, random, messages)
        caller.metadata = foothold.metadata
        for made in range(count):
            if made % TURN == 0:
                look(made)
                if not foothold.stands():
                    caller.finish()
                    foothold.close()
                    foothold = Foothold(RuntimeDir(folder), channel)
                    messages.known = foothold.known
                    caller.metadata = foothold.metadata
            caller.call()
        caller.finish()
        foothold.close()
    for (path, reason), number in caller.outcomes.items():
        outcomes[f"{path.rpartition('/')[2]} {reason}"] += number
    return outcomes, caller.faults


def speak(folder: Path, seed: int, count: int) -> tuple[Counter[str], list[str]]:
    """Sends ``count`` frames to the attach socket, and calls over lanes."""
    random = Random(seed)  # to be repeated, not to be unpredictable
    with grpc.insecure_channel(RuntimeDir(folder).grpc_target) as channel:
        foothold = Foothold(RuntimeDir(folder), channel)
        messages = Messages(random, foothold.known)
        peers = AttachPeers(RuntimeDir(folder).attach_socket, random, messages)
        lanes = LanePeers(RuntimeDir(folder).attach_socket, random, messages)
        sent = turn = 0
        while sent < count:
            sent += (lanes if random.random() * 10 < LANES else peers).connect()
            if sent // TURN > turn:
                turn = sent // TURN
                if not foothold.stands():
                    foothold.close()
                    foothold = Foothold(RuntimeDir(folder), channel)
                    messages.known = foothold.known
        peers.close()
        foothold.close()
    return peers.outcomes + lanes.outcomes, peers.faults + lanes.faults


def fuzz(inputs: int, seed: int, console: Console) -> dict[str, Any]:
    """Runs a server, send it ``inputs`` inputs, and returns what is known of it afterwards."""
    calls = inputs * CALLS // 10
    with (
        running_store("--tier1-bytes", "1MiB", "--log-level", "error") as store,
        Progress(console=console, disable=not console.is_terminal) as progress,
    ):
        folder, pid = store.runtime_dir, store.pid
        task = progress.add_task("Calling", total=calls)
        taken: list[Taken] = []

        def look(made: int) -> None:
            progress.update(task, completed=made)
            if made * 10 // calls > (made - TURN) * 10 // calls:
                console.print(f"{made:,} of {calls:,} calls")
            if made * LOOKS >= len(taken) * calls:
                taken.append(Taken.by(pid))

        arguments = ["--folder", str(folder), "--seed", str(seed + 1)]
        with subprocess.Popen(  # this program
            [sys.executable, __file__, *arguments, "--inputs", str(inputs - calls)],
            stdout=subprocess.PIPE,
        ) as peers:
            try:
                call_outcomes, faults = call(folder, seed, calls, look)
                answer, _ = peers.communicate(timeout=TAIL)
            finally:
                peers.kill()
        spoken = json.loads(answer)
        taken.append(Taken.by(pid))
        crashes = int(store.pid != pid) + int(not _serves(store))
        lines = complaints(store.log)
    half, end = taken[len(taken) // 2], taken[-1]
    faults += spoken["faults"] + lines
    flat = end.anonymous_kib <= half.anonymous_kib * GROWTH + SLACK_KIB
    return {
        "inputs": inputs,
        "seed": seed,
        "crashes": crashes,
        "unexplained_errors": len(faults),
        "memory_flat": flat,
        "memory_growth": round(end.anonymous_kib / half.anonymous_kib, 3),
        "taken": [each.as_json() for each in (taken[0], half, end)],
        "faults": faults[:20],
        "outcomes": dict(sorted((call_outcomes + Counter(spoken["outcomes"])).items())),
        "machine": machine.machine_facts(),
    }


def main(
    inputs: Annotated[int, typer.Option(min=100)] = 1_000_000,
    *,
    quick: Annotated[bool, typer.Option(help=f"{QUICK:,} inputs.")] = False,
    seed: Annotated[int | None, typer.Option(help="Repeat a run's inputs.")] = None,
    folder: Annotated[Path | None, typer.Option(hidden=True)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object, last.")] = False,
) -> None:
    """Sends nonsense to a server of its own, and says what came of it."""
    drawn = SystemRandom().getrandbits(SEED_BITS) if seed is None else seed
    if folder is not None:  # the process that speaks to the attach socket
        outcomes, faults = speak(folder, drawn, inputs)
        typer.echo(json.dumps({"outcomes": outcomes, "faults": faults}))
        return
    console = Console(stderr=True)
    console.print(f"seed {drawn}")
    result = fuzz(QUICK if quick else inputs, drawn, console)
    if not as_json:
        for name, number in result["outcomes"].items():
            typer.echo(f"{number:>9,}  {name}")
    typer.echo(
        json.dumps(result if as_json else {k: v for k, v in result.items() if k != "outcomes"})
    )
    if result["crashes"] or result["unexplained_errors"] or not result["memory_flat"]:
        raise typer.Exit(1)


def _serves(store: RunningStore) -> bool:
    """Returns whether a worker gets what it wants, after all that."""
    with grpc.insecure_channel(RuntimeDir(store.runtime_dir).grpc_target) as channel:
        foothold = Foothold(RuntimeDir(store.runtime_dir), channel)
        stands = foothold.stands()
        foothold.close()
    return stands


if __name__ == "__main__":
    typer.run(main)
