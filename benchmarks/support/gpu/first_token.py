"""The time to the first token: cold, on a hit, and for the prompt's end alone."""

import random
import time
from collections.abc import Iterator
from statistics import median
from typing import Any

import torch

from inference_worker.attention.step import Step, StepPart
from inference_worker.engine.engine import Engine
from inference_worker.engine.request import Generation
from inference_worker.model.model import PagedModel
from inference_worker.pages.block_table import BlockTable
from inference_worker.pages.pool import PagePool
from inference_worker.pages.private_arena import PRIVATE_EXTENT, PrivateArena
from kvstore_client import Namespace
from support.gpu.plan import PAGE_TOKENS, Plan

COLD, HIT, ALONE, RESIDENT = "cold", "hit", "suffix alone", "resident"


class Prompts:
    """Random token ids, new ones at each call and the same in each run."""

    def __init__(self, vocabulary: int) -> None:
        self._random = random.Random(7)
        self._vocabulary = vocabulary

    def fresh(self, count: int) -> list[int]:
        """Returns ``count`` ids that nobody has computed."""
        return self._random.choices(range(self._vocabulary), k=count)


class Resident:
    """A prefix in this process's own memory, from which an engine without a store continues."""

    def __init__(self, model: PagedModel, plan: Plan, prefix: list[int]) -> None:
        layout = model.layout(PAGE_TOKENS)
        longest = len(prefix) + plan.suffix_tokens
        arena = PrivateArena(layout, longest, model.device)
        self._model = model
        self._prefix_tokens = len(prefix)
        self._pool = PagePool(layout, model.device)
        self._pool.add_extent(PRIVATE_EXTENT, arena.tensor)
        self._table = BlockTable(PAGE_TOKENS, arena.allocate(layout.pages_for(longest)))
        for start in range(0, len(prefix), plan.chunk_tokens):
            self._forward(start, prefix[start : start + plan.chunk_tokens])

    def first_token(self, suffix: list[int]) -> float:
        """Computes the suffix after the prefix and chooses a token. Returns the seconds."""
        begin = time.perf_counter()
        int(self._forward(self._prefix_tokens, suffix)[0].argmax())
        return time.perf_counter() - begin

    def _forward(self, start: int, ids: list[int]) -> torch.Tensor:
        part = StepPart(table=self._table, start=start, count=len(ids))
        return self._model.forward(Step(self._pool, (part,)), torch.tensor(ids))


def measure_first_token(
    plan: Plan, model: PagedModel, namespace: Namespace
) -> list[dict[str, Any]]:
    """Returns a row for each length of the shared prefix: milliseconds, medians over the rounds.

    ``cold`` is a new prompt, published as it is computed. ``hit`` is a prompt whose prefix is in
    the store. ``suffix alone`` is the rest of such a prompt as a prompt of its own, without the
    store. ``resident`` is the rest after a prefix in the process's own pages, without the store.

    Ratios are the medians of the rounds' own. Raises ``RuntimeError`` if a hit misses.
    """
    prompts = Prompts(model.vocabulary)
    longest = max(plan.shared_tokens) + plan.suffix_tokens + 1
    engine = Engine(
        model,
        namespace,
        page_tokens=PAGE_TOKENS,
        longest=longest,
        max_step_tokens=plan.chunk_tokens,
    )
    return [_row(plan, model, engine, prompts, shared) for shared in plan.shared_tokens]


def _row(
    plan: Plan, model: PagedModel, engine: Engine, prompts: Prompts, shared: int
) -> dict[str, Any]:
    prefix = prompts.fresh(shared)
    resident = Resident(model, plan, prefix)
    # Publishes the prefix, and compiles the kernels.
    engine.generate(prefix + prompts.fresh(plan.suffix_tokens), 1)
    rounds = [
        dict(_round(plan, engine, resident, prompts, prefix)) for _ in range(plan.rounds + 1)
    ][1:]
    return {
        "shared_tokens": shared,
        "suffix_tokens": plan.suffix_tokens,
        "ms": {name: median(each[name] for each in rounds) * 1e3 for name in rounds[0]},
        "hit_over_suffix_alone": median(each[HIT] / each[ALONE] for each in rounds),
        "hit_over_resident": median(each[HIT] / each[RESIDENT] for each in rounds),
        "cold_over_hit": median(each[COLD] / each[HIT] for each in rounds),
    }


def _round(
    plan: Plan, engine: Engine, resident: Resident, prompts: Prompts, prefix: list[int]
) -> Iterator[tuple[str, float]]:
    """Measures each kind once, each with an end of its own."""
    suffix = prompts.fresh(plan.suffix_tokens)
    hit = engine.generate(prefix + suffix, 1)
    _require(hit, len(prefix), len(suffix))
    yield HIT, hit.time_to_first_token
    suffix = prompts.fresh(plan.suffix_tokens)
    yield ALONE, engine.generate(suffix, 1, use_store=False).time_to_first_token
    yield RESIDENT, resident.first_token(prompts.fresh(plan.suffix_tokens))
    whole = prompts.fresh(len(prefix) + plan.suffix_tokens)
    cold = engine.generate(whole, 1)
    _require(cold, 0, len(whole))
    yield COLD, cold.time_to_first_token


def _require(generation: Generation, matched: int, prefilled: int) -> None:
    """Raises if a request was not the kind that it is measured as."""
    found = (generation.matched_tokens, generation.prefilled_tokens, generation.store_failure)
    # Two random prompts may share the same few first tokens.
    if not matched <= found[0] <= matched + PAGE_TOKENS or found[2] is not None:
        raise RuntimeError(f"(matched, prefilled, failure) {found}, not {(matched, prefilled)}")
