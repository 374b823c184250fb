"""Paged attention gives the plain forward's logits, however the tokens are cut into steps."""

# ruff: noqa: ANN401 - a conftest's class, the rig, cannot be imported by its tests.

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GptOssConfig,
    GptOssForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
)

from inference_worker.attention.attention import paged_attention
from inference_worker.model.model import page_model

Ids = Callable[[int, int], list[int]]

SMALL = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}


def test_a_cold_prompt_gives_the_plain_forwards_logits(rig: Any, text_ids: Ids) -> None:
    """A prompt of several windows, run in one step, gives the plain forward's logits."""
    ids = text_ids(203, 1)
    rig.assert_close(rig.compute((rig.table(203), 0, ids)), rig.expect(ids))


@pytest.mark.parametrize("chunk", [1, 16, 50])
def test_chunks_of_any_size_give_the_plain_forwards_logits(
    rig: Any, text_ids: Ids, chunk: int
) -> None:
    """The last row of every chunk agrees, whether chunks end at page boundaries or not."""
    ids = text_ids(150, 2)
    table = rig.table(150)
    starts = range(0, 150, chunk)
    ends = [min(start + chunk, 150) for start in starts]
    got = [
        rig.compute((table, start, ids[start:end])) for start, end in zip(starts, ends, strict=True)
    ]
    rig.assert_close(torch.cat(got), rig.expect(ids, [end - 1 for end in ends]))


def test_a_matched_prefix_is_read_and_not_written(rig: Any, text_ids: Ids) -> None:
    """A second prompt continues from the first one's pages and leaves their bytes unchanged."""
    document = text_ids(160, 3)
    first = rig.table(160)
    rig.compute((first, 0, document))
    before = [rig.pool.page(page).clone() for page in first]
    ids = document[:144] + text_ids(37, 4)
    second = rig.table(len(ids), shared=list(first)[:9])
    rig.assert_close(rig.compute((second, 144, ids[144:])), rig.expect(ids))
    for page, old in zip(first, before, strict=True):
        assert torch.equal(rig.pool.page(page), old)


def test_a_prefix_cut_inside_a_page_goes_on_in_a_copy(rig: Any, text_ids: Ids) -> None:
    """A sequence that continues inside a copy of a page gets the same logits."""
    document = text_ids(96, 5)
    first = rig.table(96)
    rig.compute((first, 0, document))
    ids = document[:87] + text_ids(20, 6)
    second = rig.table(len(ids), shared=list(first)[:5])
    rig.pool.copy_page(first[5], second[5])
    rig.assert_close(rig.compute((second, 87, ids[87:])), rig.expect(ids))


def test_three_ragged_sequences_share_a_step(rig: Any, text_ids: Ids) -> None:
    """A decode, a chunk and a cold prompt in one step each get their own logits."""
    prompts = [text_ids(90, 7), text_ids(61, 8), text_ids(40, 9)]
    tables = [rig.table(len(ids)) for ids in prompts]
    done = [89, 32, 0]
    rig.compute((tables[0], 0, prompts[0][:89]), (tables[1], 0, prompts[1][:32]))
    got = rig.compute(
        *((t, at, ids[at:]) for t, at, ids in zip(tables, done, prompts, strict=True))
    )
    rig.assert_close(got, torch.cat([rig.expect(ids) for ids in prompts]))


def test_greedy_decoding_gives_stock_generates_tokens(rig: Any, text_ids: Ids) -> None:
    """Greedy decoding past a page and the window gives the tokens of stock ``generate``."""
    ids = text_ids(70, 10)
    table = rig.table(96)
    logits = rig.compute((table, 0, ids))
    output: list[int] = []
    for position in range(70, 94):
        output.append(int(logits.argmax()))
        logits = rig.compute((table, position, output[-1:]))
    prompt = torch.tensor([ids])
    # Without a mask generate would treat ids that equal its padding as padding.
    stock = rig.stock.generate(
        prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=24, do_sample=False
    )
    assert output == stock[0, 70:].tolist()


def test_a_corrupted_page_changes_the_logits(rig: Any, text_ids: Ids) -> None:
    """The comparison notices a single page of zeros far from the end."""
    ids = text_ids(150, 11)
    table = rig.table(150)
    rig.compute((table, 0, ids[:149]))
    right = rig.compute((table, 149, ids[149:]))
    rig.pool.page(table[2]).zero_()
    wrong = rig.compute((table, 149, ids[149:]))
    # A sliding layer does not read the page, and a full layer does.
    assert float((right - wrong).abs().max()) > 0.1


def test_nothing_beyond_the_sequence_is_read(rig: Any, text_ids: Ids) -> None:
    """The unused rest of the last page has no effect, even if it is NaN."""
    ids = text_ids(50, 12)
    table = rig.table(50)
    for page in table:
        rig.pool.page(page).fill_(torch.nan)
    rig.assert_close(rig.compute((table, 0, ids)), rig.expect(ids))


def other_models() -> Iterator[PreTrainedModel]:
    """Builds models with softcaps, sinks or a window in every layer, which the tiny ones lack."""
    kinds = ["sliding_attention", "full_attention"]
    yield Gemma2ForCausalLM(
        Gemma2Config(
            **SMALL,
            sliding_window=20,
            layer_types=kinds,
            attn_logit_softcapping=1.0,
            attn_implementation="eager",
        )
    )
    yield GptOssForCausalLM(
        GptOssConfig(
            **SMALL,
            sliding_window=20,
            layer_types=kinds,
            num_local_experts=2,
            num_experts_per_tok=2,
            attn_implementation="eager",
        )
    )
    yield MistralForCausalLM(MistralConfig(**SMALL, sliding_window=20))


@pytest.mark.parametrize("index", range(3), ids=["gemma2", "gpt_oss", "mistral"])
def test_softcaps_sinks_and_windows_everywhere_are_kept(
    make_rig: Callable[..., Any], text_ids: Ids, index: int
) -> None:
    """Gemma 2, gpt_oss and Mistral agree with their eager or stock attention."""
    torch.manual_seed(index)
    stock, served = (list(other_models())[index].eval() for _ in range(2))
    with torch.no_grad():
        for name, weight in stock.named_parameters():
            if "sinks" in name:
                weight.normal_()
            elif weight.dim() > 1:
                weight.mul_(8)
    served.load_state_dict(stock.state_dict())
    rig = make_rig(stock, page_model(served))
    ids = [i % 128 for i in text_ids(110, 13)]
    table = rig.table(110)
    got = [rig.compute((table, 0, ids[:61])), rig.compute((table, 61, ids[61:]))]
    rig.assert_close(torch.cat(got), rig.expect(ids, [60, 109]))


def test_attention_outside_a_step_is_an_error() -> None:
    """Attention that is called outside a step raises instead of attending to nothing."""
    tensor = torch.zeros(1, 1, 1, 1)
    with pytest.raises(RuntimeError, match="outside a step"):
        paged_attention(torch.nn.Module(), tensor, tensor, tensor, None)


def test_a_mask_is_an_error(rig: Any) -> None:
    """A model that builds a mask of its own is refused."""
    tensor = torch.zeros(1, 1, 1, 1)
    with pytest.raises(RuntimeError, match="mask"):
        paged_attention(torch.nn.Module(), tensor, tensor, tensor, tensor, kvstore_attention=rig)
