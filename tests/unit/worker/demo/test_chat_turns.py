"""The experiment's chats say the same with and without the cache, and reuse their turns."""

from typing import Any

import pytest

from inference_worker.demo.experiments import CHAT_LONGEST, chat_turns_faults, measure_chat_turns
from inference_worker.engine.local_worker import local_worker
from inference_worker.model.model import PagedModel
from kvstore_client.testing import running_store


def test_the_second_turn_goes_on_from_the_first(paged_models: dict[str, PagedModel]) -> None:
    """The second turn reuses all tokens that the first computed, and each time is reported."""
    with (
        running_store("--tier1-bytes", "32MiB") as store,
        local_worker(
            paged_models["qwen3"], runtime_dir=store.runtime_dir, longest=CHAT_LONGEST
        ) as worker,
    ):
        report = measure_chat_turns(worker, 2)
    assert chat_turns_faults(report) == []
    first, second = report["turns"]
    assert first["prefilled_tokens"] > first["prompt_tokens"] * 0.9
    assert second["prompt_tokens"] - second["prefilled_tokens"] > first["prompt_tokens"]
    for row in (first, second):
        for kind in ("with", "without"):
            times = row[f"ttft_ms_{kind}_all"]
            assert len(times) == report["runs"] == 2
            assert row[f"ttft_ms_{kind}"] == pytest.approx(sum(times) / 2)


def test_each_fault_is_a_sentence() -> None:
    """Differing tokens, and a second turn that was computed anew, are reported."""
    first = {"prompt_tokens": 50, "prefilled_tokens": 50}
    good: dict[str, Any] = {
        "identical": True,
        "turns": [first, {"prompt_tokens": 90, "prefilled_tokens": 20}],
    }
    assert chat_turns_faults(good) == []
    bad = {"identical": False, "turns": [first, {"prompt_tokens": 90, "prefilled_tokens": 40}]}
    assert chat_turns_faults(bad) == [
        "the outputs differ",
        "the second turn reused 50 tokens, not all of the first",
    ]
