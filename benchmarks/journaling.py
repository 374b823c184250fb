"""The cost of a journal at the verbs and for a caller, and how long a recovery from one takes.

Three caches take turns in one process, with the same sequences. One has no journal, and one has a
durable journal. The third one's memory is a stand-in: a copy into a buffer that is as large as a
segment, and a dictionary of rows. For a caller, a store with a holder takes turns with one without.
"""

import gc
import json
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from kvstore.succession.journal.durable_journal import DurableJournal
from kvstore.succession.journal.store_row import StoreRow
from kvstore_client.testing import running_store
from support import machine
from support.journaling.engine import (
    RANDOM,
    opened,
    seconds_of,
    seconds_to_evict,
    tokens,
)
from support.journaling.recoveries import Size, processor_seconds
from support.journaling.stand_in import SEGMENT_BYTES, BufferMemory, touched_memory
from support.rpc.requests_in_turns import METHOD, STORE_BYTES, in_turns, requests_of
from support.succession.holder import Holder

PAGES = 64
# Half of each sequence is one of these, which are cached.
PROMPTS = 50
SLOTS, QUICK_SLOTS = 20_000, 2_000
ROUNDS, QUICK_ROUNDS = 40, 3
CALLS = 60
# Rounds, and seconds a turn of each store, of whole calls.
CALL_ROUNDS, QUICK_CALL_ROUNDS = (40, 0.5), (2, 0.05)
VERBS = ("acquire", "insert", "release and abort", "evict")
RECOVERIES = (Size(20_000, 32), Size(20_000, 8), Size(1_000_000, 32), Size(1_000_000, 8))
QUICK_RECOVERIES = (Size(2_000, 32), Size(2_000, 8))


def measured(slots: int, rounds: int) -> dict[str, Any]:
    """Returns the microseconds of each verb without and with a journal, their ratios, and bytes.

    ``bytes_a_page`` are those of all records, divided by the pages that were inserted.
    """
    stand_in, durable = BufferMemory(), durable_journal()
    caches = [opened(slots, each) for each in (None, stand_in, durable)]
    durable.follow(caches[2])
    new = PAGES // 2
    prompts, ids = [tokens(new) for _ in range(PROMPTS)], count(1)
    gc.disable()
    found: list[list[tuple[float, ...]]] = [[] for _ in caches]
    inserted = 0
    for number in range(rounds + 1):
        # The first round fills the pools.
        calls = CALLS if number else slots // new
        sequences = [RANDOM.choice(prompts) + tokens(new) for _ in range(calls)]
        # What is evicted is replaced before the next round.
        more = [RANDOM.choice(prompts) + tokens(new) for _ in range(CALLS)]
        for turn in range(len(caches)):
            which = (number + turn) % len(caches)
            took = seconds_of(caches[which], sequences, ids)
            evicting = seconds_to_evict(caches[which], new, CALLS)
            seconds_of(caches[which], more, ids)
            if number:
                found[which].append((*took, evicting))
        inserted += new * (calls + CALLS)
    gc.enable()
    verbs = {}
    for place, verb in enumerate(VERBS):
        times = [[each[place] for each in rows] for rows in found]
        row = {"without_us": microseconds(times[0])}
        for name, with_one in zip(("stand_in", "durable"), times[1:], strict=True):
            row[f"{name}_us"] = microseconds(with_one)
            pairs = zip(times[0], with_one, strict=True)
            row[f"{name}_ratio"] = round(median(b / a for a, b in pairs), 3)
        verbs[verb] = row
    return {"verbs": verbs, "bytes_a_page": round(stand_in.record_bytes / inserted, 1)}


def microseconds(times: list[float]) -> float:
    """Returns the median of some seconds, in microseconds."""
    return round(median(times) * 1e6, 1)


def durable_journal() -> DurableJournal:
    """Returns a durable journal in memory of this process, as large as two segments."""
    store = StoreRow(1, 1, b"", b"")
    return DurableJournal.create(lambda _, size: touched_memory(size), 2 * SEGMENT_BYTES, store)


def recovered(sizes: tuple[Size, ...]) -> list[dict[str, float]]:
    """Returns the processor time of recoveries of some sizes."""
    return [{**each._asdict(), "seconds": round(processor_seconds(each), 3)} for each in sizes]


def called(rounds: int, seconds: float) -> dict[str, Any]:
    """Returns the times of whole calls at a store without a holder, and at one with it."""
    with TemporaryDirectory(prefix="kv-journaling-") as name, ExitStack() as stack:
        holder = Holder(Path(name, "holder"))
        stack.callback(holder.kill)
        holder.start()
        more = {"without": (), "with": ("--holder", str(holder.folder), "--no-holder-start")}
        size = ("--tier1-bytes", str(STORE_BYTES), "--extent-bytes", str(STORE_BYTES))
        stores = {
            way: stack.enter_context(running_store(*size, *each)) for way, each in more.items()
        }
        ways = {way: stack.enter_context(requests_of(each)) for way, each in stores.items()}
        figures = in_turns(ways, rounds, seconds)
    return {**METHOD, "rounds": rounds, "seconds_a_turn": seconds, "calls": figures}


def main(
    *,
    quick: Annotated[bool, typer.Option(help="Take a few seconds, for a rough answer.")] = False,
    recover: Annotated[bool, typer.Option(help="Measure recoveries too.")] = False,
    calls: Annotated[bool, typer.Option(help="Measure whole calls over a lane too.")] = False,
) -> None:
    """Measures the verbs and prints the figures as JSON."""
    slots, rounds = (QUICK_SLOTS, QUICK_ROUNDS) if quick else (SLOTS, ROUNDS)
    facts = {**machine.machine_facts(), "load_average_before": machine.load_average()}
    document = {"machine": facts, **measured(slots, rounds)}
    if recover:
        document["recoveries"] = recovered(QUICK_RECOVERIES if quick else RECOVERIES)
    if calls:
        document["over_a_lane"] = called(*(QUICK_CALL_ROUNDS if quick else CALL_ROUNDS))
    print(json.dumps(document, indent=1))


if __name__ == "__main__":
    typer.run(main)
