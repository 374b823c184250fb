"""The probe finds what pages have to hold, and refuses models that pages cannot serve."""

from collections.abc import Callable
from typing import Any

import pytest
from transformers import (
    AttentionInterface,
    BertConfig,
    BertLMHeadModel,
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    FalconConfig,
    FalconForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    Gemma4ForCausalLM,
    Gemma4TextConfig,
    Llama4ForCausalLM,
    Llama4TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    PhimoeConfig,
    PhimoeForCausalLM,
    PreTrainedModel,
    Qwen3NextConfig,
    Qwen3NextForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

from kvstore_transformers.errors import UnsupportedModelError
from kvstore_transformers.model_probe import PROBE_NAME, probe_model

IDS = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
SMALL: dict[str, Any] = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    **IDS,
}
BARE = {key: SMALL[key] for key in SMALL if key != "num_key_value_heads"}
LATENT = {
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "moe_intermediate_size": 32,
    "n_routed_experts": 2,
    "num_experts_per_tok": 1,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 2,
}
TWO_SIZES = {
    "head_dim": 16,
    "global_head_dim": 32,
    "layer_types": ["sliding_attention", "full_attention"],
    "hidden_size_per_layer_input": 0,
    "vocab_size_per_layer_input": 128,
    "num_kv_shared_layers": 0,
}
STRETCHED = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
LONG = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "short_factor": [1.0] * 8,
    "long_factor": [2.0] * 8,
    "original_max_position_embeddings": 64,
}
CHUNKED = {"head_dim": 16, "intermediate_size_mlp": 64, "num_local_experts": 2}

REFUSED: dict[str, tuple[Callable[[], PreTrainedModel], str]] = {
    "llama4": (lambda: Llama4ForCausalLM(Llama4TextConfig(**SMALL, **CHUNKED)), "only in its mask"),
    "latent": (
        lambda: DeepseekV3ForCausalLM(
            DeepseekV3Config(**{**SMALL, "num_key_value_heads": 4}, **LATENT)
        ),
        "differ in",
    ),
    "recurrent": (
        lambda: Qwen3NextForCausalLM(
            Qwen3NextConfig(**{**SMALL, "num_hidden_layers": 4}, num_experts=2)
        ),
        "linear_attention",
    ),
    "own attention": (lambda: FalconForCausalLM(FalconConfig(**BARE)), "0 of its 2 layers"),
    "head sizes": (lambda: Gemma4ForCausalLM(Gemma4TextConfig(**SMALL, **TWO_SIZES)), "differ in"),
    "looking ahead": (
        lambda: Gemma3ForCausalLM(Gemma3TextConfig(**SMALL, use_bidirectional_attention=True)),
        "looks ahead",
    ),
    "not causal": (lambda: BertLMHeadModel(BertConfig(**BARE)), "not plain causal"),
    "window lost": (
        lambda: PhimoeForCausalLM(PhimoeConfig(**SMALL, sliding_window=20, num_local_experts=2)),
        "its attention is told",
    ),
    "dynamic positions": (
        lambda: LlamaForCausalLM(LlamaConfig(**SMALL, rope_parameters=STRETCHED)),
        "'dynamic'",
    ),
    "long positions": (
        lambda: Phi3ForCausalLM(
            Phi3Config(**SMALL, max_position_embeddings=128, rope_parameters=LONG)
        ),
        "'longrope'",
    ),
    "positions of one kind of layer": (
        lambda: Gemma3ForCausalLM(
            Gemma3TextConfig(
                **SMALL,
                rope_parameters={
                    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
                    "full_attention": STRETCHED,
                },
            )
        ),
        "'dynamic'",
    ),
    "encoder": (
        lambda: T5ForConditionalGeneration(T5Config(vocab_size=128, d_model=32, num_layers=1)),
        "encoder",
    ),
}


@pytest.mark.parametrize("kind", sorted(REFUSED))
def test_what_pages_cannot_hold_is_refused_with_its_reason(kind: str) -> None:
    """Each kind of model that pages cannot hold is refused with a reason."""
    build, reason = REFUSED[kind]
    with pytest.raises(UnsupportedModelError, match=reason) as caught:
        probe_model(build().eval())
    assert caught.value.model_type in str(caught.value)


def test_the_shape_is_what_attention_is_given(stock_models: dict[str, PreTrainedModel]) -> None:
    """Layers, heads, head size and each layer's window are found."""
    shape = probe_model(stock_models["gemma3"])
    assert (shape.layer_count, shape.kv_head_count, shape.head_dim) == (6, 2, 32)
    assert shape.windows == (32, 32, None, 32, 32, None)


def test_a_window_of_all_layers_is_learnt() -> None:
    """A window without layer types applies to every layer."""
    module = MistralForCausalLM(MistralConfig(**SMALL, sliding_window=20)).eval()
    assert probe_model(module).windows == (20, 20)


def test_the_model_is_left_as_it_was(stock_models: dict[str, PreTrainedModel]) -> None:
    """The model's attention is the stock one again, and the probe's name is removed."""
    module = stock_models["llama"]
    before = module.config._attn_implementation
    probe_model(module)
    assert module.config._attn_implementation == before == "sdpa"
    assert PROBE_NAME not in AttentionInterface()
