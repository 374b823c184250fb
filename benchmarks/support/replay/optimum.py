"""What no policy can do better than: Belady's, for prefixes."""

from heapq import heappop, heappush

from support.replay.trace import Request, next_uses


def optimum(requests: list[Request], capacity: int) -> float:
    """Returns the share of tokens that hit if always the block used last of all goes.

    A block is never used later than one that continues it, so of those used equally
    late the deepest goes, and no block goes before what continues it. A request's own
    blocks may go at once, which is a cache that takes in only what it will need.
    """
    uses = next_uses(requests)
    # Of cached blocks the number of the request that uses them next.
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
