"""The baseline: a map of whole prompts, least recently used first, nothing in part."""

from collections import OrderedDict

from kvstore.core.values.counters import Counters
from support.replay.core import Replayed
from support.replay.trace import Request


def replay_exact(requests: list[Request], capacity: int) -> Replayed:
    """Replays a trace: a prompt hits whole if this very prompt is there, else not at all.

    Each prompt takes as many pages as it has blocks; one larger than all is not taken.
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
