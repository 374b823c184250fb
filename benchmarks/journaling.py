"""The cost of a journal at the verbs, and how long a recovery from one takes.

Two caches take turns in one process, with the same sequences. The journal's memory is a stand-in: a
copy into a buffer that is as large as a segment, and a dictionary of rows.
"""

import gc
import json
from itertools import count
from statistics import median
from typing import Annotated, Any

import typer

from support import machine
from support.journaling.engine import (
    RANDOM,
    opened,
    seconds_of,
    seconds_to_evict,
    tokens,
)
from support.journaling.recoveries import Size, processor_seconds
from support.journaling.stand_in import BufferMemory

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
    """Returns the microseconds of each verb without and with a journal, their ratio, and bytes.

    ``bytes_a_page`` are those of all records, divided by the pages that were inserted.
    """
    memory = BufferMemory()
    caches = [opened(slots, None), opened(slots, memory)]
    new = PAGES // 2
    prompts, ids = [tokens(new) for _ in range(PROMPTS)], count(1)
    gc.disable()
    found: list[list[tuple[float, ...]]] = [[], []]
    inserted = 0
    for number in range(rounds + 1):
        # The first round fills the pools.
        calls = CALLS if number else slots // new
        sequences = [RANDOM.choice(prompts) + tokens(new) for _ in range(calls)]
        # What is evicted is replaced before the next round.
        more = [RANDOM.choice(prompts) + tokens(new) for _ in range(CALLS)]
        for which in (0, 1) if number % 2 else (1, 0):
            took = seconds_of(caches[which], sequences, ids)
            evicting = seconds_to_evict(caches[which], new, CALLS)
            seconds_of(caches[which], more, ids)
            if number:
                found[which].append((*took, evicting))
        inserted += new * (calls + CALLS)
    gc.enable()
    verbs = {}
    for place, verb in enumerate(VERBS):
        without, with_one = ([each[place] for each in times] for times in found)
        ratio = median(b / a for a, b in zip(without, with_one, strict=True))
        verbs[verb] = {
            "without_us": round(median(without) * 1e6, 1),
            "with_us": round(median(with_one) * 1e6, 1),
            "ratio": round(ratio, 3),
        }
    return {"verbs": verbs, "bytes_a_page": round(memory.record_bytes / inserted, 1)}


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
