"""The answer to a request of a demo, run with the store, without it, and on stock transformers."""

from dataclasses import dataclass
from typing import Any, Final

from inference_worker.demo.comparison import compare
from inference_worker.demo.line_process import LineProcess
from inference_worker.errors import WorkerError

OUTPUT_TOKENS: Final = 16


@dataclass(frozen=True)
class DemoAnswer:
    """The worker's answer with the store, and the row of the report so far."""

    answer: dict[str, Any]
    row: dict[str, Any]


def ask_all_ways(
    worker: LineProcess, reference: LineProcess, kind: str, prompt_ids: list[int]
) -> DemoAnswer:
    """Runs a request in all three ways, one after the other, and compares their tokens.

    Raises ``WorkerError`` if a process fails, or if the worker did without the store.
    """
    request = {"op": "generate", "prompt_ids": prompt_ids, "max_tokens": OUTPUT_TOKENS}
    answer = worker.ask(**request)
    if answer["store_failure"] is not None:
        raise WorkerError(f"worker {worker.name} did without: {answer['store_failure']}")
    without = worker.ask(**request, use_store=False)
    stock = compare(reference.ask, prompt_ids, answer["output_ids"])
    alone = stock
    near_ties = len(stock.near_ties)
    if without["output_ids"] != answer["output_ids"]:
        alone = compare(reference.ask, prompt_ids, without["output_ids"])
        near_ties += len(alone.near_ties)
    row = {
        "worker": worker.name,
        "kind": kind,
        "prompt_ids": list(prompt_ids),
        "prompt_tokens": len(prompt_ids),
        "matched_tokens": answer["matched_tokens"],
        "copied_tokens": answer["copied_tokens"],
        "prefilled_tokens": answer["prefilled_tokens"],
        "output_ids": answer["output_ids"],
        "reference_ids": stock.reference_ids,
        "near_ties": stock.near_ties,
        "near_tie_tokens": near_ties,
        "ttft_ms": answer["ttft_ms"],
        "ttft_ms_without": without["ttft_ms"],
        "ttft_ms_stock": stock.stock_ttft_ms,
        "identical": stock.identical and alone.identical,
    }
    return DemoAnswer(answer, row)
