"""A trace of chat requests, replayed many times to see if the index stays fast."""

import gc
from array import array
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from time import perf_counter, thread_time
from typing import Any

from kvstore.service.clock import MONOTONIC
from kvstore.service.periodic_threads import Collector
from kvstore_ctl.bench.prompt_trace import blocks_of, object_of, rows_of
from support.index.trees import PAGE_TOKENS, WIDTH, Tree
from support.traces import asking

BLOCK_TOKENS = 512
LINE = 'a line is JSON with "hash_ids" and "input_length"'
# Pages of room for each request, which needs about 750.
PAGES_A_REQUEST = 30
CONTROL_TOKENS, CONTROL_NODES, CONTROL_EVERY = 100_000, 196, 32


def prompts(path: Path, requests: int) -> list[bytes]:
    """Returns each request's tokens: 512 for each of its ids, cut to its length in pages.

    Raises ``ValueError`` for a file that cannot be read or has no tokens. For a wrong line it has
    the line's number.
    """
    return asking(path, rows_of(path, _tokens, LINE, requests), len)


def _tokens(line: object) -> bytes:
    ids, length = blocks_of(object_of(line))
    tokens = array("I")
    for each in ids:
        tokens.extend(range(each * BLOCK_TOKENS, (each + 1) * BLOCK_TOKENS))
    return tokens.tobytes()[: min(length, len(tokens)) // PAGE_TOKENS * WIDTH]


def replay(asked: Sequence[bytes], passes: int, requests: int) -> dict[str, Any]:
    """Replays prompts that many times into a cache with a fraction of the room for them.

    The room follows from ``requests``, of which ``asked`` has as many or fewer. A request is a
    match, an insert of the rest with room made for it, and a release.

    Returns each pass's figures, and the last pass's time of a page's match over the first's. The
    ratio is given as it is, and compared with the control's walks of the same passes.
    """
    pages = requests * PAGES_A_REQUEST
    tree, control = Tree(pages), Control()
    Collector(MONOTONIC).begin()
    # The prompts existed before. Only the cache's garbage may be collected.
    gc.freeze()
    figures = [_one_pass(tree, asked, control) for _ in range(passes)]
    first, last = figures[0], figures[-1]
    slower = last["match_ns_per_page"] / first["match_ns_per_page"]
    return {
        "requests": requests,
        "capacity_pages": pages,
        "last_over_first": round(slower, 3),
        "last_over_first_by_control": round(
            slower * first["control_us_median"] / last["control_us_median"], 3
        ),
        "passes": figures,
    }


class Control:
    """A prompt in an unchanged cache of its own, which shows the machine's speed of a walk."""

    def __init__(self) -> None:
        self._tree = Tree(2 * CONTROL_TOKENS // PAGE_TOKENS)
        self._prompt = self._tree.add_chain(CONTROL_TOKENS, CONTROL_NODES)

    def walk_us(self) -> float:
        """Returns the processor time of one walk, in microseconds."""
        begun = thread_time()
        self._tree.walk(self._prompt)
        return (thread_time() - begun) * 1e6


def _one_pass(tree: Tree, asked: Sequence[bytes], control: Control) -> dict[str, Any]:
    """Replays all requests once. Walks are timed by processor time, with cold memory."""
    walks: list[float] = []
    controls: list[float] = []
    counters, found, started = tree.namespace.counters, 0, perf_counter()
    evicted = counters.evicted_page_count
    for number, tokens in enumerate(asked):
        if number % CONTROL_EVERY == 0:
            controls.append(control.walk_us())
        begun = thread_time()
        at = tree.walk(tokens)
        walks.append((thread_time() - begun) * 1e6)
        found += at.depth
        missing = len(tokens) // WIDTH - at.depth
        hold = tree.hold(at)
        lacking = missing - tree.arena.free_count
        if lacking <= 0 or tree.evict(lacking):
            tree.add(tokens)
        tree.let_go(hold)
    pages, nodes = tree.index.page_count, len(tree.index.nodes)
    return {
        "nodes": nodes,
        "pages": pages,
        "nodes_per_page": round(nodes / pages, 5),
        "pages_found": found,
        "pages_evicted": counters.evicted_page_count - evicted,
        "match_us_median": round(median(walks), 2),
        "match_ns_per_page": round(sum(walks) / max(found, 1) * 1000, 2),
        "control_us_median": round(median(controls), 2),
        "seconds": round(perf_counter() - started, 1),
    }
