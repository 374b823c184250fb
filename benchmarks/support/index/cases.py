"""The cases of benchmarks/index.py: what each side builds, and which calls are timed."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import NamedTuple

import xxhash

from kvstore.core.index.hash_index import HashIndex
from support.index.peer import SGLang
from support.index.trees import LEAF_PAGES, PAGE_TOKENS, WIDTH, Tree, sequence, timed

PROMPT = 100_000
CACHED, FRESH = 2_048, 512
# Memory for the inserts of a run, which were up to 55,000 of 32 pages.
INSERTED_PAGES = 1 << 22
Slice = Callable[[float], list[float]]
# The sides without a figure, and the reason.
SLOW = "the build takes minutes"


class Size(NamedTuple):
    """The size of a run. A quick one reports the slow cases as left out."""

    quick: bool


@dataclass
class Case:
    """One case: the timed sides, the others with a reason, and whether it is the index alone."""

    name: str
    slices: dict[str, Slice]
    missing: dict[str, str] = field(default_factory=dict)


def nothing() -> None:
    """Prepares nothing."""


def chained_hashes() -> tuple[Callable[[bytes], int], Callable[[bytes], None]]:
    """Returns a match and an insert by chained hashes of blocks, as in vLLM's manager.

    They use xxh3 of 128 bits over the parent's and the block's bytes, and one map.
    """
    known: dict[bytes, int] = {}

    def match(tokens: bytes) -> int:
        digest, found = b"", 0
        for start in range(0, len(tokens), WIDTH):
            digest = xxhash.xxh3_128_digest(digest + tokens[start : start + WIDTH])
            if digest not in known:
                break
            found += 1
        return found

    def insert(tokens: bytes) -> None:
        digest = b""
        for start in range(0, len(tokens), WIDTH):
            digest = xxhash.xxh3_128_digest(digest + tokens[start : start + WIDTH])
            known.setdefault(digest, start)

    return match, insert


def match_case(nodes: int, peers: dict[str, SGLang], size: Size) -> Case:
    """Matches a prompt of 100,000 tokens in that many nodes."""
    name = f"match_100k_{nodes}_node" + ("s" if nodes > 1 else "")
    missing = {who: SLOW for who in peers if _walks_all(who) and nodes > 1_000 and size.quick}
    there = {who: peer for who, peer in peers.items() if who not in missing}
    for peer in there.values():
        peer.begin("build_chain", name=name, tokens=PROMPT, nodes=nodes)
    tree = Tree(PROMPT // PAGE_TOKENS + 2 * nodes)
    prompt = tree.add_chain(PROMPT, nodes)
    assert tree.walk(prompt).depth == PROMPT // PAGE_TOKENS
    hashed = Tree(PROMPT // PAGE_TOKENS, HashIndex)
    hashed.add(prompt)
    match, insert = chained_hashes()
    insert(prompt)
    asked = prompt + sequence(0, 1)

    def verb_ready() -> bytes:
        tree.release()
        return asked

    case = Case(
        name,
        {
            "kvstore": lambda s: timed(s, lambda: prompt, tree.walk),
            "kvstore_verb": lambda s: timed(s, verb_ready, tree.match_verb),
            "kvstore_hash": lambda s: timed(s, lambda: prompt, hashed.walk),
            "vllm_style_hash": lambda s: timed(s, lambda: prompt, match),
        },
        missing,
    )
    for who, peer in there.items():
        assert peer.finish() == PROMPT
        case.slices[who] = partial(_ask_match, peer, name)
    return case


def _walks_all(who: str) -> bool:
    return who == "sglang_python"


def _ask_match(peer: SGLang, name: str, seconds: float) -> list[float]:
    took: list[float] = peer.ask("match", name=name, tokens=PROMPT, seconds=seconds)
    return took


def insert_case(peers: dict[str, SGLang]) -> Case:
    """Inserts 512 new tokens after 2,048 cached ones."""
    name, numbers = "insert_512", count(1)
    tree = Tree(INSERTED_PAGES)
    cached = sequence(0, CACHED)
    tree.add(cached)

    def fresh() -> tuple[bytes, object]:
        tokens = cached + sequence((1 << 25) + next(numbers) * FRESH, FRESH)
        # The peers' trees have no bound and evict nothing.
        if tree.arena.free_count < FRESH // PAGE_TOKENS:
            tree.add_memory(INSERTED_PAGES)
        return tokens, tree.take(FRESH // PAGE_TOKENS)

    case = Case(name, {"kvstore": lambda s: timed(s, fresh, lambda each: tree.add(*each))})  # type: ignore[arg-type]
    for who, peer in peers.items():
        peer.ask("build_chain", name=name, tokens=CACHED, nodes=1)
        case.slices[who] = partial(_ask_insert, peer, name)
    return case


def _ask_insert(peer: SGLang, name: str, seconds: float) -> list[float]:
    took: list[float] = peer.ask("insert", name=name, cached=CACHED, fresh=FRESH, seconds=seconds)
    return took


def evict_case(leaves: int, peers: dict[str, SGLang], size: Size) -> Case:
    """Evicts 64 tokens among that many leaves of 64 tokens, which share no page."""
    name = f"evict_{leaves // 1000}k_leaves" if leaves < 1_000_000 else "evict_1m_leaves"
    missing = {who: SLOW for who in peers if leaves > 100_000 and (size.quick or _walks_all(who))}
    there = {who: peer for who, peer in peers.items() if who not in missing}
    for peer in there.values():
        peer.begin("build_leaves", name=name, leaves=leaves)
    tree = Tree(LEAF_PAGES * (leaves + 1))
    tree.add_leaves(leaves)

    def evict(_: object) -> None:
        assert tree.evict(LEAF_PAGES) == LEAF_PAGES

    case = Case(name, {"kvstore": lambda s: timed(s, tree.add_leaf, evict)}, missing)
    for who, peer in there.items():
        peer.finish()
        case.slices[who] = partial(_ask_evict, peer, name)
    return case


def _ask_evict(peer: SGLang, name: str, seconds: float) -> list[float]:
    took: list[float] = peer.ask("evict", name=name, seconds=seconds)
    return took
