"""A trace of chat requests, replayed again and again: does the index stay as fast as it was."""

import gzip
import json
from array import array
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from support.index_trees import PAGE_TOKENS, WIDTH, Tree

BLOCK_TOKENS = 512


def prompts(path: Path, requests: int) -> Iterator[bytes]:
    """Yield each request's tokens: 512 made of each of its ids, cut to its length."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for number, line in enumerate(lines):
            if number == requests:
                return
            request = json.loads(line)
            ids = array("I")
            for each in request["hash_ids"]:
                ids.extend(range(each * BLOCK_TOKENS, (each + 1) * BLOCK_TOKENS))
            whole = min(request["input_length"], len(ids)) // PAGE_TOKENS * WIDTH
            yield ids.tobytes()[:whole]


def replay(path: Path, passes: int, requests: int, pages: int) -> list[dict[str, Any]]:
    """Replay a trace so many times into a cache of so many pages; return each pass's figures.

    A request is a match, an insert of the rest with room made for it, and a release.
    """
    tree = Tree(pages)
    asked = list(prompts(path, requests))
    return [_one_pass(tree, asked) for _ in range(passes)]


def _one_pass(tree: Tree, asked: list[bytes]) -> dict[str, Any]:
    walks: list[float] = []
    for tokens in asked:
        begun = perf_counter()
        at = tree.walk(tokens)
        walks.append((perf_counter() - begun) * 1e6)
        missing = len(tokens) // WIDTH - at.depth
        hold = tree.hold(at)
        lacking = missing - tree.arena.free_count
        if lacking <= 0 or tree.evict(lacking):
            tree.add(tokens)
        tree.let_go(hold)
    pages, nodes = tree.index.page_count, len(tree.index.nodes)
    lengths = sum(len(each) for each in asked) / WIDTH
    return {
        "nodes": nodes,
        "pages": pages,
        "nodes_per_page": round(nodes / pages, 5),
        "match_us_median": round(median(walks), 2),
        "match_us_per_1k_pages": round(sum(walks) / lengths * 1000, 2),
    }
