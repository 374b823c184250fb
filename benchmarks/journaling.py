"""The cost of a journal at the verbs, and how long a recovery from one takes.

Three caches take turns in one process, with the same sequences. One has no journal, and one has a
durable journal. The third one's memory is a stand-in: a copy into a buffer that is as large as a
segment, and a dictionary of rows.
"""

import gc
import json
from itertools import count
from statistics import median
from typing import Annotated, Any

import typer

from kvstore.succession.durable_journal import DurableJournal
from kvstore.succession.store_row import StoreRow
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

PAGES = 64
# Half of each sequence is one of these, which are cached.
PROMPTS = 50
SLOTS, QUICK_SLOTS = 20_000, 2_000
ROUNDS, QUICK_ROUNDS = 40, 3
CALLS = 60
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


def main(
    *,
    quick: Annotated[bool, typer.Option(help="Take a few seconds, for a rough answer.")] = False,
    recover: Annotated[bool, typer.Option(help="Measure recoveries too.")] = False,
) -> None:
    """Measures the verbs and prints the figures as JSON."""
    slots, rounds = (QUICK_SLOTS, QUICK_ROUNDS) if quick else (SLOTS, ROUNDS)
    facts = {**machine.machine_facts(), "load_average_before": machine.load_average()}
    document = {"machine": facts, **measured(slots, rounds)}
    if recover:
        document["recoveries"] = recovered(QUICK_RECOVERIES if quick else RECOVERIES)
    print(json.dumps(document, indent=1))


if __name__ == "__main__":
    typer.run(main)
