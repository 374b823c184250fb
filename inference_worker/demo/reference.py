"""Stock transformers as a process of its own: what a worker's tokens are compared with.

``python -m inference_worker.demo.reference --model FOLDER`` prints ``{"ready": true}`` and then
answers each line ``{"id", "prompt_ids", "max_tokens", "forced_ids"}`` of standard input with one
line ``{"id", "output_ids", "ttft_ms", "gaps"}``, or ``{"id", "error"}``.

It knows neither the store nor the pages: the model, its attention and ``generate`` are stock.
``forced_ids`` (optional) are taken as the first output ids whatever the model prefers, so that the
comparison can go on from a token that a near tie made differ.
``gaps`` has, for each output id, how far the best two logits were apart there.
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import torch
from transformers import (
    AutoModelForCausalLM,
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedModel,
)
from transformers.utils.logging import disable_progress_bar

from inference_worker.model.device import find_device, use_threads
from inference_worker.model.names import CPU


class Watcher(LogitsProcessor):  # type: ignore[misc]
    """Sees each step's logits: notes the time and the gap, and puts forced ids through."""

    def __init__(self, forced_ids: Sequence[int]) -> None:
        """Starts before the first step."""
        self.gaps: list[float] = []
        self.forced_ids = list(forced_ids)
        self.first_seen: float | None = None

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Takes the raw logits ``[1, vocabulary]`` of one step and gives those to choose from."""
        del input_ids
        best = scores[0].topk(2).values.tolist()
        if self.first_seen is None:
            self.first_seen = time.perf_counter()
        step = len(self.gaps)
        self.gaps.append(best[0] - best[1])
        if step >= len(self.forced_ids):
            return scores
        chosen = torch.full_like(scores, -torch.inf)
        chosen[0, self.forced_ids[step]] = 0.0
        return chosen


class Reference:
    """A stock model that continues prompts greedily, one at a time."""

    def __init__(self, module: PreTrainedModel) -> None:
        """Takes a loaded model; its own generation settings are dropped."""
        self._module = module.eval()
        self._module.generation_config = GenerationConfig()

    def answer(
        self, prompt_ids: Sequence[int], max_tokens: int, forced_ids: Sequence[int] = ()
    ) -> dict[str, Any]:
        """Continues a prompt by exactly ``max_tokens`` ids, the first of them forced.

        Raises ``ValueError`` for an empty prompt, no token to give, or more forced than given.
        """
        if not prompt_ids or max_tokens < 1 or len(forced_ids) > max_tokens:
            raise ValueError(
                f"{len(prompt_ids)} prompt, {len(forced_ids)} forced and {max_tokens} tokens"
            )
        watcher = Watcher(forced_ids)
        ids = torch.tensor([list(prompt_ids)], device=self._module.device)
        begin = time.perf_counter()
        sequence = self._module.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            logits_processor=LogitsProcessorList([watcher]),
            max_new_tokens=max_tokens,
            do_sample=False,
            eos_token_id=None,
        )
        assert watcher.first_seen is not None
        return {
            "output_ids": sequence[0, ids.shape[1] :].tolist(),
            "ttft_ms": (watcher.first_seen - begin) * 1e3,
            "gaps": watcher.gaps,
        }


def load_reference(folder: Path, device: str = CPU) -> Reference:
    """Loads a folder's model in float32 with stock attention; raises as ``find_device``."""
    module = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="sdpa"
    )
    return Reference(module.to(find_device(device)))


def serve(reference: Reference, requests: IO[str], answers: IO[str]) -> None:
    """Answers requests, one JSON object a line, until there are no more."""
    _put(answers, {"ready": True})
    for line in requests:
        name: Any = None
        try:
            request: dict[str, Any] = json.loads(line)
            name = request.get("id")
            forced = request.get("forced_ids") or ()
            found = reference.answer(request["prompt_ids"], request["max_tokens"], forced)
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            found = {"error": f"{type(error).__name__}: {error}"}
        _put(answers, {"id": name, **found})


def _put(answers: IO[str], answer: dict[str, Any]) -> None:
    answers.write(json.dumps(answer) + "\n")
    answers.flush()


def main() -> None:
    """Runs the reference on standard input and output."""
    parser = argparse.ArgumentParser(description="Stock transformers, greedy, one line a request.")
    parser.add_argument("--model", type=Path, required=True, help="a transformers model folder")
    parser.add_argument("--threads", type=int, default=None, help="default: all cores")
    parser.add_argument("--device", default=CPU, help="cpu or cuda:N")
    options = parser.parse_args()
    use_threads(options.threads)
    disable_progress_bar()
    serve(load_reference(options.model, options.device), sys.stdin, sys.stdout)


if __name__ == "__main__":
    main()
