"""Memory and pauses at scale, each measured by this file in a process of its own.

``python scale.py memory PAGES PAGES_A_NODE`` prints bytes a page. ``python scale.py pauses PAGES
PAGES_A_NODE default

ours`` prints the collector's longest pause in milliseconds. ``scale.py namespaces COUNT`` prints
the cost of a store with that many namespaces. ``scale.py prompt TOKENS`` prints the cost of one
prompt of that length. All print JSON.
"""

import gc
import json
import subprocess
import sys
from collections import deque
from pathlib import Path
from time import perf_counter
from typing import Any

from kvstore.core.index.node import Position
from kvstore.core.pool.pages import publish
from kvstore.service.periodic_threads import Collector
from support.index.trees import PAGE_TOKENS, Tree, sequence

PAGE_BYTES = 4096
FORKS = 2
# Nodes between two checks if a collection is due: at most those of a second.
STEP = 1_000


def measure(*arguments: object) -> Any:  # noqa: ANN401  # one figure or several
    """Runs one measurement in a process of its own and returns its output."""
    command = [sys.executable, "-m", "support.index.scale", *map(str, arguments)]
    folder = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)  # noqa: S603
    return json.loads(done.stdout)


def fill(tree: Tree, pages_a_node: int, collector: Collector | None = None) -> int:
    """Fills a cache with prompts that fork in two after each node, and returns the nodes."""
    ends: deque[Position] = deque([tree.root])
    begin, made = 1, 0
    while tree.arena.free_count >= FORKS * pages_a_node:
        at = ends.popleft()
        for _ in range(FORKS):
            tokens = sequence(begin, pages_a_node * PAGE_TOKENS)
            begin += pages_a_node * PAGE_TOKENS
            end = tree.grow(at, tokens)
            ends.append(end)
            # A leaf that would have grown was split, so its upper part is another node now.
            above = end.node.parent
            assert above is not None  # the root is the parent of all
            at = Position(above, len(above.slots))
            made += 1
        if collector is not None and made % STEP == 0:
            collector.step()
    return made


def memory(pages: int, pages_a_node: int) -> dict[str, float]:
    """Returns the growth of this process by a filled index, in bytes a page."""
    gc.disable()
    tree = Tree(pages)
    before = _resident()
    nodes = fill(tree, pages_a_node)
    gc.collect()
    grown = _resident() - before
    count = tree.index.page_count
    return {"bytes_per_page": round(grown / count, 1), "pages": count, "nodes": nodes}


def pauses(pages: int, pages_a_node: int, kind: str) -> dict[str, float]:
    """Returns the collector's longest pause while an index is filled and then used."""
    collector = None
    if kind == "ours":
        collector = Collector(perf_counter)
        collector.begin()
    longest, begun, spent = 0.0, 0.0, 0.0

    def note(phase: str, _: dict[str, int]) -> None:
        nonlocal longest, begun, spent
        if phase == "start":
            begun = perf_counter()
        else:
            took = perf_counter() - begun
            longest, spent = max(longest, took), spent + took

    tree = Tree(pages)
    gc.callbacks.append(note)
    nodes = fill(tree, pages_a_node, collector)
    for _ in range(nodes // 4):
        tree.evict(pages_a_node)
        tree.add_leaf(pages_a_node)
    if collector is not None:
        collector.step()
    gc.callbacks.remove(note)
    return {"longest_ms": round(longest * 1e3, 2), "total_ms": round(spent * 1e3, 1)}


def namespaces(count: int) -> dict[str, float]:
    """Returns the cost of that many namespaces, each with one page of its own."""
    gc.disable()
    tree = Tree(count)
    before = _resident()
    opened = [tree.open(number) for number in range(count)]
    grown = _resident() - before
    page = sequence(1, PAGE_TOKENS)
    for each in opened:
        publish(each, Position(each.index.root, 0), page, tree.take(1))
    seconds = 0.0
    for each in opened:
        begun = perf_counter()
        found = each.index.descend(Position(each.index.root, 0), page, 1)
        seconds += perf_counter() - begun
        assert found.depth == 1
    return {
        "namespaces": count,
        "bytes_each": round(grown / count),
        "match_us": round(seconds / count * 1e6, 2),
    }


def prompt(tokens: int) -> dict[str, float]:
    """Returns the cost of the longest prompt within the limits, in milliseconds."""
    tree = Tree(tokens // PAGE_TOKENS + 1)
    tokens = min(tokens, tree.cache.limits.max_tokens)
    asked = sequence(0, tokens)
    begun = perf_counter()
    tree.add(asked)
    inserted = perf_counter()
    tree.walk(asked)
    walked = perf_counter()
    tree.match_verb(asked)
    done = perf_counter()
    times = {"insert": inserted - begun, "walk": walked - inserted, "match_verb": done - walked}
    return {"tokens": tokens} | {f"{name}_ms": round(s * 1e3, 3) for name, s in times.items()}


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * PAGE_BYTES


if __name__ == "__main__":
    what, total, *rest = sys.argv[1:]
    if what == "pauses":
        print(json.dumps(pauses(int(total), int(rest[0]), rest[1])))
    elif what == "memory":
        print(json.dumps(memory(int(total), int(rest[0]))))
    else:
        print(json.dumps({"namespaces": namespaces, "prompt": prompt}[what](int(total))))
