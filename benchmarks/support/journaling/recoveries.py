"""Recoveries of a journal with many pages."""

import gc
import time
from array import array
from itertools import count
from typing import NamedTuple

from kvstore.core.recovery.recover import recover
from kvstore.core.values.slots import SlotState
from support.journaling.engine import NOW, empty_cache, opened, seconds_of, tokens
from support.journaling.stand_in import KeptMemory


class Size(NamedTuple):
    """The pages in a journal, and those of each of its records."""

    pages: int
    pages_a_record: int


def processor_seconds(size: Size) -> float:
    """Returns the processor time of one recovery, all of whose pages are live.

    Each sequence continues one that is cached, by a record of its own. Raises ValueError if the
    cache is another one afterwards.
    """
    generations, memory = array("Q", bytes(8 * size.pages)), KeptMemory()
    cache = opened(size.pages, memory, generations)
    ids, prompt = count(1), tokens(size.pages_a_record)
    for _ in range(size.pages // size.pages_a_record):
        seconds_of(cache, [prompt + tokens(size.pages_a_record)], ids)
    known = cache.arenas[1].counts[SlotState.CACHED]
    gc.disable()
    begun = time.process_time()
    found = recover(memory.contents(), {1: generations}, empty_cache, NOW).cache
    took = time.process_time() - begun
    gc.enable()
    if found.arenas[1].counts[SlotState.CACHED] != known:
        raise ValueError(f"{known} pages were cached, and {size} came back as others")
    return took
