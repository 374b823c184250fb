"""SGLang's prefix caches, controlled by lines: its Python tree, or its Rust core.

It runs in SGLang's environment, in a process of its own, and imports nothing of ours. The argument
is "python" or "rust". Each line on stdin is a JSON object with ``do``. Each gets one on stdout.

All measured code is SGLang's own. Two things that it does not need are left out. SGLang's outermost
package, which patches model code, is not run, and torchvision is an empty module.
"""

import importlib.util
import json
import os
import random
import sys
import time
import types
from array import array
from collections.abc import Callable
from typing import Any

import torch
import transformers  # noqa: F401  # before torchvision seems to be there

PAGE = 16
LEAF_TOKENS = 64
# Above all tokens of prompts, so that forks and leaves share no first token with them.
OTHER = 1 << 24


def _prepare() -> None:
    found = importlib.util.find_spec("sglang")
    assert found
    assert found.submodule_search_locations
    package = types.ModuleType("sglang")
    package.__path__ = list(found.submodule_search_locations)
    sys.modules["sglang"] = package
    for name in ("", ".io", ".transforms", ".transforms.functional"):
        module = types.ModuleType(f"torchvision{name}")
        module.__path__ = []
        module.__getattr__ = _nothing  # type: ignore[method-assign]
        sys.modules[module.__name__] = module


def _nothing(name: str) -> type:
    if name.startswith("__"):
        raise AttributeError(name)
    return type(name, (), {})


_prepare()

from sglang.srt.mem_cache import base_prefix_cache as base  # noqa: E402
from sglang.srt.mem_cache.cache_init_params import CacheInitParams  # noqa: E402
from sglang.srt.mem_cache.radix_cache import RadixCache, RadixKey  # noqa: E402


class Allocator:
    """An allocator that drops evicted indices, which costs least."""

    device = "cpu"

    def free_segment(self, indices: object, start_pos: int) -> None:
        """Drops the indices."""


class PythonTree:
    """SGLang's ``RadixCache``."""

    def __init__(self) -> None:
        self.cache = RadixCache.create_simulated(mock_allocator=Allocator(), page_size=PAGE)

    def match(self, key: Any) -> int:  # noqa: ANN401  # their class
        """Matches and returns the tokens found."""
        return int(self.cache.match_prefix(base.MatchPrefixParams(key=key)).device_prefix_len)

    def insert(self, params: Any) -> None:  # noqa: ANN401  # their class
        """Inserts a sequence."""
        self.cache.insert(params)

    def evict(self, tokens: int) -> int:
        """Evicts and returns the number of tokens evicted."""
        return int(self.cache.evict(base.EvictParams(num_tokens=tokens)).num_tokens_evicted)


class RustCore:
    """The Rust tree core, by its own adapter, driven as ``UnifiedRadixCache`` drives it."""

    def __init__(self) -> None:
        from sglang.srt.mem_cache.rust_tree_core import adapter, extension  # noqa: PLC0415
        from sglang.srt.mem_cache.unified_cache.component_type import (  # noqa: PLC0415
            ComponentType,
        )

        adapter.RustUnifiedTreeCore._bindings = getattr(  # noqa: SLF001
            adapter.RustUnifiedTreeCore, "_bindings", extension.bindings
        )
        self._full = ComponentType.FULL
        self.core = adapter.RustUnifiedTreeCore(
            CacheInitParams(
                disable=False,
                req_to_token_pool=None,
                token_to_kv_pool_allocator=None,
                page_size=PAGE,
                tree_components=(ComponentType.FULL,),
            )
        )

    def match(self, key: Any) -> int:  # noqa: ANN401  # their class
        """Matches and returns the tokens found."""
        return int(self.core.match_prefix(base.MatchPrefixParams(key=key)).device_prefix_len)

    def insert(self, params: Any) -> None:  # noqa: ANN401  # their class
        """Inserts a sequence in as many steps as it takes."""
        step = self.core.begin_insert(params)
        while step.result is None:
            step = self.core.resume_insert()
        self.core.end_insert()

    def evict(self, tokens: int) -> int:
        """Evicts leaf by leaf and returns the number of tokens evicted."""
        full, core = self._full, self.core
        gone = {full: 0}
        core.evict_device_start(full, tokens)
        while gone[full] < tokens:
            result = core.evict_device_next_node(full, gone)
            gone[full] += self._drained(result)
            if result.node_id is None:
                break
            leaf = core.evict_device_leaf(result.node_id, is_write_back=False)
            gone[full] += self._drained(leaf)
        core.evict_device_end(full)
        return gone[full]

    def _drained(self, result: Any) -> int:  # noqa: ANN401  # one of theirs
        """Takes the tokens that a step evicted, and returns their number."""
        result.device_frees.clear()
        result.host_frees.clear()
        result.cache_actions.clear()
        return int(result.tracker.get(self._full, 0))


KINDS: dict[str, Callable[[], Any]] = {"python": PythonTree, "rust": RustCore}


def key_of(tokens: "array[int]") -> Any:  # noqa: ANN401  # their class
    """Returns the key of a request's tokens."""
    return RadixKey(array("q", tokens))


def entry(tokens: "array[int]") -> Any:  # noqa: ANN401  # their class
    """Returns the arguments that insert a sequence."""
    value = torch.arange(len(tokens), dtype=torch.int64)
    return base.InsertParams(key=key_of(tokens), value=value)


class Bench:
    """One cache at a time, and the timed calls on it."""

    def __init__(self, kind: str) -> None:
        self._make = KINDS[kind]
        self._random = random.Random(7)
        self._trees: dict[str, Any] = {}
        self._next = OTHER

    def build_chain(self, name: str, tokens: int, nodes: int) -> int:
        """Caches a prompt in that many nodes, and returns the tokens that a match of it finds.

        A match that ends inside a node splits it, in each of the trees.
        """
        tree, prompt = self._make(), array("q", range(tokens))
        tree.insert(entry(prompt))
        step = -(-tokens // nodes // PAGE) * PAGE
        for end in range(step, tokens, step):
            tree.match(key_of(prompt[:end]))
        self._trees[name] = tree
        return int(tree.match(key_of(prompt)))

    def build_leaves(self, name: str, leaves: int) -> int:
        """Caches that many prompts of 64 tokens without a shared prefix."""
        tree = self._trees[name] = self._make()
        for _ in range(leaves):
            self._add_leaf(tree)
        return leaves

    def _add_leaf(self, tree: Any) -> None:  # noqa: ANN401  # one of the two
        begin, self._next = self._next, self._next + LEAF_TOKENS
        tree.insert(entry(array("q", range(begin, begin + LEAF_TOKENS))))

    def match(self, name: str, tokens: int, seconds: float) -> list[float]:
        """Times matches of a prompt."""
        tree, key = self._trees[name], key_of(array("q", range(tokens)))
        return self._timed(seconds, lambda: None, lambda _: tree.match(key))

    def insert(self, name: str, cached: int, fresh: int, seconds: float) -> list[float]:
        """Times inserts of new tokens after cached ones, which stay."""
        tree, prompt = self._trees[name], array("q", range(cached))

        def prepare() -> Any:  # noqa: ANN401  # their class
            begin, self._next = self._next, self._next + fresh
            return entry(prompt + array("q", range(begin, begin + fresh)))

        return self._timed(seconds, prepare, tree.insert)

    def evict(self, name: str, seconds: float) -> list[float]:
        """Times evictions of 64 tokens. As many are inserted before each, untimed."""
        tree = self._trees[name]

        def evict(_: object) -> None:
            assert tree.evict(LEAF_TOKENS) >= LEAF_TOKENS

        return self._timed(seconds, lambda: self._add_leaf(tree), evict)

    def rest(self) -> int:
        """Does nothing. Its answer says that all earlier requests are done."""
        return 0

    def drop(self, name: str) -> int:
        """Forgets a cache."""
        self._trees.pop(name, None)
        return 0

    @staticmethod
    def _timed(
        seconds: float, prepare: Callable[[], Any], call: Callable[[Any], object]
    ) -> list[float]:
        took: list[float] = []
        end = time.perf_counter() + seconds
        while not took or time.perf_counter() < end:
            argument = prepare()
            begun = time.perf_counter()
            call(argument)
            took.append((time.perf_counter() - begun) * 1e6)
        return took


def main() -> None:
    """Executes each line, and answers on the stdout that the process was started with."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    torch.set_num_threads(1)
    bench = Bench(sys.argv[1])
    for line in sys.stdin:
        arguments = json.loads(line)
        answer = getattr(bench, arguments.pop("do"))(**arguments)
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
