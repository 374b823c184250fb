"""In the deterministic mode a position's numbers have the same bits, whatever else runs."""

# ruff: noqa: ANN401 - a conftest's class, the rig, cannot be imported by its tests.

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from transformers import GptOssConfig, GptOssForCausalLM

from engines.engine_world import EngineWorld
from engines.heard import Heard
from inference_worker.attention.deterministic import PIECE_TOKENS
from inference_worker.attention.step import Step
from inference_worker.engine.engine import Engine
from inference_worker.engine.request import Request
from inference_worker.errors import UnsupportedModelError
from inference_worker.model.model import page_model
from inference_worker.model.self_check import SHORTEST, check_exact
from inference_worker.model.tiny import TINY_MODELS
from inference_worker.pages.pool import PagePool
from kvstore_client.testing import running_store

LENGTH = 3 * PIECE_TOKENS + 21
Ids = Callable[[int, int], list[int]]


@pytest.fixture(scope="module", params=sorted(TINY_MODELS))
def exact(request: pytest.FixtureRequest, stock_models: Any) -> tuple[Any, Any]:
    """Returns a tiny model in the default mode, and on pages in the deterministic mode."""
    module = TINY_MODELS[request.param]()
    return stock_models[request.param], page_model(module, deterministic=True)


@pytest.fixture
def rig(exact: tuple[Any, Any], make_rig: Callable[..., Any]) -> Any:
    """Returns a rig of the deterministic model."""
    return make_rig(*exact)


def logits_by_cuts(rig: Any, ids: Sequence[int], ends: Sequence[int], table: Any) -> torch.Tensor:
    """Computes a sequence in steps that end at ``ends``. Returns the last row of each step."""
    starts = [0, *ends[:-1]]
    return torch.cat(
        [rig.compute((table, at, ids[at:end])) for at, end in zip(starts, ends, strict=True)]
    )


def test_it_agrees_with_the_plain_forward(rig: Any, text_ids: Ids) -> None:
    """Padding and pieces change the result by rounding alone."""
    ids = text_ids(LENGTH, 1)
    ends = [1, PIECE_TOKENS - 1, PIECE_TOKENS, PIECE_TOKENS + 1, LENGTH - 1, LENGTH]
    got = logits_by_cuts(rig, ids, ends, rig.table(LENGTH))
    rig.assert_close(got, rig.expect(ids, [end - 1 for end in ends]))


@pytest.mark.parametrize("chunk", [1, 7, PIECE_TOKENS, LENGTH])
def test_chunks_of_any_size_give_the_same_bits(rig: Any, text_ids: Ids, chunk: int) -> None:
    """Logits, keys and values have the same bits for any chunk size and any old page content."""
    ids = text_ids(LENGTH, 2)
    assert LENGTH % PIECE_TOKENS < 23
    whole, cut = rig.table(LENGTH), rig.table(LENGTH)
    for page in cut:
        rig.pool.page(page).fill_(torch.nan)
    # With chunks of one token only the last 23 are computed one by one.
    ends = [*range(LENGTH - 23 if chunk == 1 else chunk, LENGTH, chunk), LENGTH]
    got = logits_by_cuts(rig, ids, ends, cut)
    rows = [rig.compute((whole, 0, ids[:end])) for end in ends[-3:]]
    assert torch.equal(got[-3:], torch.cat(rows))
    full = LENGTH // rig.pool.layout.page_tokens
    for mine, theirs in zip(list(cut)[:full], list(whole)[:full], strict=True):
        assert torch.equal(rig.pool.page(mine), rig.pool.page(theirs))


def test_a_hit_gives_the_bits_of_a_miss(rig: Any, text_ids: Ids) -> None:
    """A hit, on matched pages or on a page copied up to a token, gives the bits of a miss."""
    document = text_ids(LENGTH, 3)
    first = rig.table(LENGTH)
    rig.compute((first, 0, document))
    matched = (LENGTH - 16) // 16
    ids = document[: LENGTH - 16] + text_ids(40, 4)
    hit, miss = rig.table(len(ids), shared=list(first)[:matched]), rig.table(len(ids))
    rig.pool.copy_page(first[matched], hit[matched])
    got = rig.compute((hit, LENGTH - 16, ids[LENGTH - 16 :]))
    assert torch.equal(got, rig.compute((miss, 0, ids)))


def test_company_changes_no_bit(rig: Any, text_ids: Ids) -> None:
    """Decodes and prefills of one step each get the bits that they get alone."""
    prompts = [text_ids(length, length) for length in (90, 61, 40, 33, 2)]
    done = [89, 32, 0, 32, 1]
    tables = [rig.table(len(ids)) for ids in prompts]
    for table, ids, at in zip(tables, prompts, done, strict=True):
        if at:
            rig.compute((table, 0, ids[:at]))
    parts = list(
        zip(tables, done, [i[at:] for i, at in zip(prompts, done, strict=True)], strict=True)
    )
    together = rig.compute(*parts)
    alone = [rig.compute((rig.table(len(ids)), 0, ids)) for ids in prompts]
    assert torch.equal(together, torch.cat(alone))


def test_an_engine_gives_a_request_the_logits_it_gets_alone(
    text_ids: Ids, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request gets the logits that it gets alone, bit for bit, however it is computed."""
    model = page_model(TINY_MODELS["qwen3"](), deterministic=True)
    document = text_ids(40, 5)
    prompts = [document[:cut] + text_ids(7, cut) for cut in (40, 9, 39, 33)]
    seen: set[bytes] = set()
    forward = model.forward

    def watched(step: Step, input_ids: torch.Tensor) -> torch.Tensor:
        logits = forward(step, input_ids)
        seen.update(row.numpy().tobytes() for row in logits)
        return logits

    monkeypatch.setattr(model, "forward", watched)
    engine = Engine(model, None, longest=80, max_step_tokens=512)
    tokens = [engine.generate(ids, 12).output_ids for ids in prompts]
    alone = set(seen)
    for room in (80, 500):
        seen.clear()
        engine = Engine(model, None, longest=80, max_step_tokens=23, private_tokens=room)
        heard = [Heard() for _ in prompts]
        for ids, each in zip(prompts, heard, strict=True):
            engine.add(Request(prompt_ids=ids, max_tokens=12), each)
        while engine.has_work:
            engine.step()
        assert (engine.stats.preemptions > 0) == (room == 80)
        assert [each.tokens for each in heard] == tokens
        assert seen == alone
    seen.clear()
    with (
        running_store("--tier1-bytes", "16MiB") as store,
        EngineWorld(model, store.runtime_dir) as w,
    ):
        w.wait_open()
        found = [w.generate(ids, 12) for ids in prompts]
    assert [each.output_ids for each in found] == tokens
    assert [each.matched_tokens + each.copied_tokens for each in found] == [0, 9, 39, 33]
    assert seen == alone


def test_its_pages_are_no_others(rig: Any, paged_models: Any) -> None:
    """The digest, and so the namespace, depends on the mode and on all that changes bits."""
    digest = rig.paged.digest
    assert digest not in {model.digest for model in paged_models.values()}
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(threads + 1)
        assert rig.paged.digest != digest
    finally:
        torch.set_num_threads(threads)
    assert rig.paged.digest == digest


def test_what_rows_beside_it_change_is_refused(rig: Any) -> None:
    """Loading a model fails if other rows of a batch change a row's product on this machine."""
    pool = PagePool(rig.pool.layout)
    ids = torch.arange(SHORTEST)

    def forward(step: Step, input_ids: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = rig.paged.forward(step, input_ids)
        return logits * (1 + step.token_count * 2**-20)

    check_exact("right", rig.paged.forward, pool, ids)
    with pytest.raises(UnsupportedModelError, match="on the other rows"):
        check_exact("wrong", forward, pool, ids)
    assert pool.extents == frozenset()


def test_experts_are_refused() -> None:
    """A model with experts is refused. An expert's batch depends on the rest of the forward."""
    config = GptOssConfig(
        vocab_size=16, hidden_size=16, intermediate_size=16, num_hidden_layers=1, head_dim=8,
        num_attention_heads=2, num_key_value_heads=1, num_local_experts=2, num_experts_per_tok=1,
    )  # fmt: skip
    with pytest.raises(UnsupportedModelError, match="deterministic"):
        page_model(GptOssForCausalLM(config), deterministic=True)
