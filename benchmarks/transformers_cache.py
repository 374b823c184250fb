"""``model.generate`` from the store, beside the same without it, in turns."""

import json
import time
from collections.abc import Callable
from statistics import median
from typing import Annotated, Any

import torch
import typer
from transformers import AutoModelForCausalLM, PreTrainedModel

from inference_worker.model.device import use_threads
from inference_worker.model.model import model_folder
from kvstore_client import ClientConfig
from kvstore_client.testing import running_store
from kvstore_transformers import PrefixStore
from support import machine

ROUNDS, QUICK_ROUNDS = 7, 3
# A call that another process delays is a slow round and not a miss.
PATIENCE = 30.0


class Ways:
    """One model, one store, and three ways to generate from a prompt."""

    def __init__(self, model: PreTrainedModel, store: PrefixStore, new_tokens: int) -> None:
        self._model = model
        self._store = store
        self._new_tokens = new_tokens
        self.identical = True
        self.cached_tokens: list[int] = []

    def round(self, ids: torch.Tensor) -> dict[str, float]:
        """Returns the seconds of a new prompt: without the store, on a miss, and on a hit."""
        seconds = {}
        seconds["stock"], wanted = _timed(lambda: self._generate(input_ids=ids))
        for way in ("miss", "hit"):
            seconds[way], found = _timed(lambda: self._stored(ids))
            self.identical &= torch.equal(found, wanted)
        return seconds

    def _stored(self, ids: torch.Tensor) -> torch.Tensor:
        with self._store.prompt(ids) as prompt:
            output = self._generate(**prompt)
        self.cached_tokens.append(prompt.cached_token_count)
        return output

    def _generate(self, **inputs: Any) -> torch.Tensor:  # noqa: ANN401 - generate's own
        output: torch.Tensor = self._model.generate(
            **inputs, max_new_tokens=self._new_tokens, do_sample=False, eos_token_id=None
        )
        return output


def main(
    model: Annotated[str, typer.Option(help="A model, as for kvstore-worker --model.")] = "gemma",
    tokens: Annotated[int, typer.Option(min=1, help="Tokens of each prompt.")] = 1_000,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of each way and output.")] = ROUNDS,
    threads: Annotated[int, typer.Option(min=1, help="Threads of torch.")] = 2,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print only one JSON document.")] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="Use the tiny model and three rounds.")
    ] = False,
) -> None:
    """Measures 1 and 32 tokens of output, and prints medians and the rounds' ratios."""
    if quick:
        model, rounds = "tiny", min(rounds, QUICK_ROUNDS)
    use_threads(threads)
    before = machine.load_average()
    module = AutoModelForCausalLM.from_pretrained(model_folder(model))
    with (
        running_store("--tier1-bytes", "1GiB") as running,
        PrefixStore(
            module,
            running.runtime_dir,
            config=ClientConfig(call_timeout=PATIENCE),
            open_timeout=PATIENCE,
        ) as store,
    ):
        cells = [
            _cell(Ways(module, store, new_tokens), new_tokens, tokens, rounds)
            for new_tokens in (1, 32)
        ]
    result = {
        "model": model,
        "prompt_tokens": tokens,
        "rounds": rounds,
        "threads": threads,
        "cells": cells,
        "machine": machine.machine_facts(),
        "torch": torch.__version__,
        "load_average": {"before": before, "after": machine.load_average()},
    }
    if not as_json:
        for cell in cells:
            print(
                f"{cell['new_tokens']:>3} tokens after {tokens}: "
                f"without {cell['stock_ms']} ms, miss {cell['miss_ms']} ms, "
                f"hit {cell['hit_ms']} ms, {cell['stock_over_hit']} times faster"
            )
    print(json.dumps(result, indent=1))


def _cell(ways: Ways, new_tokens: int, tokens: int, rounds: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(new_tokens)
    prompts = torch.randint(3, 256, (rounds + 1, 1, tokens), generator=generator)
    # The first round runs a model that has not computed yet.
    found = [ways.round(ids) for ids in prompts][1:]
    return {
        "new_tokens": new_tokens,
        **{f"{way}_ms": round(median(each[way] for each in found) * 1e3, 1) for way in found[0]},
        "stock_over_hit": round(median(each["stock"] / each["hit"] for each in found), 2),
        "miss_over_stock": round(median(each["miss"] / each["stock"] for each in found), 3),
        "cached_tokens": ways.cached_tokens[-1],
        "identical": ways.identical,
        "seconds": found,
    }


def _timed(call: Callable[[], torch.Tensor]) -> tuple[float, torch.Tensor]:
    begin = time.perf_counter()
    answer = call()
    return time.perf_counter() - begin, answer


if __name__ == "__main__":
    typer.run(main)
