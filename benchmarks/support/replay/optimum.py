"""The upper bound of all policies: Belady's algorithm for prefixes."""

from heapq import heappop, heappush

from support.replay.trace import Request, next_uses


def optimum(requests: list[Request], capacity: int) -> float:
    """Returns the share of tokens that hit if always the block with the latest next use is evicted.

    A block's next use is never later than that of its continuation. Of blocks with equal next use
    the deepest is evicted, and no block is evicted before its continuation. A request's own blocks
    may be evicted at once, so the cache admits only blocks that it will need.
    """
    uses = next_uses(requests)
    # The number of the next request that uses each cached block.
    cached: dict[int, int] = {}
    farthest: list[tuple[int, int, int]] = []
    hit = 0
    for request, following in zip(requests, uses, strict=True):
        depth = 0
        while depth < len(request.ids) and request.ids[depth] in cached:
            depth += 1
        hit += request.tokens_of(depth)
        for place, (block, use) in enumerate(zip(request.ids, following, strict=True)):
            cached[block] = use
            heappush(farthest, (-use, -place, block))
        while len(cached) > capacity:
            use, _, block = heappop(farthest)
            if cached.get(block) == -use:
                del cached[block]
    return hit / sum(each.token_count for each in requests)
