"""The baseline: a map of whole prompts, evicted in LRU order, without partial hits."""

from collections import OrderedDict

from kvstore.core.values.counters import Counters
from support.replay.core import Replayed
from support.replay.trace import Request


def replay_exact(requests: list[Request], capacity: int) -> Replayed:
    """Replays a trace. A prompt hits if exactly this prompt is cached.

    Each prompt takes as many pages as it has blocks. A prompt larger than the cache is not cached.
    """
    prompts: OrderedDict[tuple[int, ...], None] = OrderedDict()
    pages = hit = 0
    counters = Counters()
    for request in requests:
        if request.ids in prompts:
            prompts.move_to_end(request.ids)
            hit += request.token_count
        elif len(request.ids) <= capacity:
            prompts[request.ids] = None
            pages += len(request.ids)
            counters.inserted_page_count += len(request.ids)
            while pages > capacity:
                gone, _ = prompts.popitem(last=False)
                pages -= len(gone)
                counters.evicted_page_count += len(gone)
    return Replayed(hit, len(requests), counters, {1: hit})
