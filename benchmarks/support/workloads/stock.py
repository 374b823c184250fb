"""Prefill of the engine without the store, beside stock transformers'."""

from collections.abc import Sequence
from random import Random
from statistics import median

from inference_worker.demo.reference import Reference
from support.workloads.engine import Driver
from support.workloads.text import Text


def beside_stock(
    reference: Reference, engine: Driver, text: Text, lengths: Sequence[int], rounds: int
) -> dict[int, float]:
    """Returns the engine's time to first token over stock's, by the prompt's length in tokens.

    Both run in one process, in turns, in a random order. The figure is the median of the rounds'
    own ratios, without the first round.
    """
    order = Random(0)
    ratios = {}
    for length in lengths:
        found = []
        for _ in range(rounds + 1):
            ids = text.opening(length)
            if order.random() < 0.5:
                mine = engine.one(ids, 1).first_token_s
                stock = reference.answer(ids, 1)["ttft_ms"]
            else:
                stock = reference.answer(ids, 1)["ttft_ms"]
                mine = engine.one(ids, 1).first_token_s
            found.append(mine * 1e3 / stock)
        ratios[length] = round(median(found[1:]), 3)
    return ratios
