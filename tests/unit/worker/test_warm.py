"""Prompts are computed once, pinned, and found by the first who asks."""

from collections.abc import Iterator

import pytest

from inference_worker.local_worker import LocalWorker, local_worker
from inference_worker.model import PagedModel
from inference_worker.warm import Warmer
from inference_worker.warm_prompts import WarmPrompt
from kvstore_client.testing import running_store

PROMPT = WarmPrompt(1, "warm/first", [each % 256 for each in range(100)])
LONGEST = 128


@pytest.fixture(scope="module")
def worker(paged_models: dict[str, PagedModel]) -> Iterator[LocalWorker]:
    """Return a worker on a store with room for a few prompts."""
    model = paged_models["qwen3"]
    budget = str(model.layout(16).page_bytes * 32)
    with (
        running_store("--tier1-bytes", budget, "--extent-bytes", budget) as store,
        local_worker(model, runtime_dir=store.runtime_dir, longest=LONGEST) as made,
    ):
        yield made


@pytest.fixture
def warmer(worker: LocalWorker) -> Warmer:
    """Return what warms the store."""
    assert worker.client is not None
    assert worker.namespace is not None
    return Warmer(worker, worker.client.admin, worker.namespace.namespace_id, 16)


def pins(worker: LocalWorker) -> dict[str, int]:
    """Return the tokens of each named pin."""
    assert worker.client is not None
    return {each.name: each.pinned_token_count for each in worker.client.admin.named_pins()}


def test_a_prompt_is_computed_once_and_pinned(worker: LocalWorker, warmer: Warmer) -> None:
    """The second time nothing is computed, and whoever asks finds all that can be found."""
    first = warmer.warm(PROMPT)
    assert (first.failure, first.tokens, first.computed_tokens) == (None, 100, 100)
    again = warmer.warm(PROMPT, ttl=60.0)
    assert (again.failure, again.computed_tokens, again.pinned_tokens) == (None, 0, 96)
    assert pins(worker) == {"warm/first": 96}
    asked = worker.engine.generate([*PROMPT.ids, 7, 8, 9], 2)
    assert (asked.matched_tokens, asked.copied_tokens) == (96, 4)


def test_a_name_goes_over_to_another_prompt(worker: LocalWorker, warmer: Warmer) -> None:
    """The pin of the name holds what was warmed last."""
    other = PROMPT._replace(ids=PROMPT.ids[::-1][:50])
    assert warmer.warm(other).failure is None
    assert pins(worker) == {"warm/first": 48}


def test_what_is_not_pinned_says_why(worker: LocalWorker, warmer: Warmer) -> None:
    """Too short, too long, and no room: each is a failure of its own prompt."""
    before = pins(worker)
    short = warmer.warm(WarmPrompt(1, "short", [1, 2, 3]))
    assert (short.pinned_tokens, short.failure) == (0, "shorter than a page of 16 tokens")
    too_long = warmer.warm(WarmPrompt(2, "long", [1] * LONGEST))
    assert "longest sequence has 128" in str(too_long.failure)
    full = [warmer.warm(WarmPrompt(each, f"full {each}", [each] * 112)) for each in range(5)]
    reasons = [each.failure for each in full if each.failure is not None]
    assert reasons
    assert all("PREFIX_NOT_CACHED" in each for each in reasons)
    assert before.items() <= pins(worker).items()
