"""The experiment counts the tokens that the model really ran, and reports too many."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from inference_worker.attention.step import Step
from inference_worker.demo.experiments import (
    PAGE_TOKENS,
    PREFILL_LONGEST,
    measure_saved_prefill,
    saved_prefill_faults,
)
from inference_worker.engine.local_worker import LocalWorker, local_worker
from inference_worker.model.model import PagedModel
from kvstore_client.testing import running_store


@pytest.fixture
def worker(paged_models: dict[str, PagedModel]) -> Iterator[LocalWorker]:
    """Returns a worker on a store."""
    with (
        running_store("--tier1-bytes", "16MiB") as store,
        local_worker(
            paged_models["qwen3"],
            runtime_dir=store.runtime_dir,
            page_tokens=PAGE_TOKENS,
            longest=PREFILL_LONGEST,
        ) as made,
    ):
        yield made


def test_the_positions_are_those_that_the_model_ran(
    worker: LocalWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model runs 121 positions without the cache and 24 with it, and gives the same output."""
    spans: list[list[int]] = []
    forward = worker.model.forward

    def watch(step: Step, input_ids: torch.Tensor) -> torch.Tensor:
        (start,) = (part.start for part in step.parts)
        if not spans or start <= spans[-1][-1]:
            spans.append([])
        spans[-1] += range(start, start + input_ids.shape[0])
        return forward(step, input_ids)

    monkeypatch.setattr(worker.model, "forward", watch)
    report = measure_saved_prefill(worker)
    assert saved_prefill_faults(report) == []
    alone, earlier, cached = spans
    assert alone == earlier == list(range(121))
    assert cached == list(range(97, 121))
    assert report["without"]["computed_tokens"] == 121
    assert report["with"] == {
        "matched_tokens": 96,
        "copied_tokens": 1,
        "prefilled_tokens": 5,
        "computed_tokens": 24,
    }


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        ({"store_failure": "gone"}, "the store failed: gone"),
        ({"without": {"computed_tokens": 120}}, "without the cache 121 positions have to run"),
        ({"with": {"computed_tokens": 25}}, "with the cache at most 24 positions may run"),
        ({"identical": False}, "the outputs differ"),
    ],
    ids=str,
)
def test_each_fault_is_a_sentence(change: dict[str, Any], wrong: str) -> None:
    """Each fault of a report gives a sentence, and a good report gives none."""
    good = {
        "store_failure": None,
        "without": {"computed_tokens": 121},
        "with": {"computed_tokens": 24},
        "identical": True,
    }
    assert saved_prefill_faults(good) == []
    assert saved_prefill_faults(good | change) == [wrong]
