"""Tiny random models of the architectures whose KV vLLM keeps otherwise than a dense model's.

Each has the class, the names of weights and the configuration of the real one, and few small
layers. Their caches differ: sliding windows, recurrent states, compressed KV.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

import transformers
from transformers import PretrainedConfig, PreTrainedModel

from inference_worker.model.tiny import SIZES, with_weights

WINDOW: Final = 64
SLIDING: Final = "sliding_attention"
FULL: Final = "full_attention"
# Mamba-2 with one group, as all of these have it.
MAMBA2: Final[Mapping[str, int]] = MappingProxyType(
    {
        "mamba_n_heads": 8,
        "mamba_d_head": 32,
        "mamba_n_groups": 1,
        "mamba_d_state": 16,
        "mamba_expand": 2,
    }
)
# Heads that vLLM's gated delta rule on a CPU takes.
DELTA: Final[Mapping[str, int]] = MappingProxyType(
    {
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 64,
        "linear_value_head_dim": 64,
        "linear_conv_kernel_dim": 4,
    }
)
EXPERTS: Final[Mapping[str, int]] = MappingProxyType(
    {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
)


# A model of few attention layers looks at its last token alone, unless embeddings are small.
EMBEDDING_DEVIATIONS: Final[Mapping[str, float]] = MappingProxyType(
    {"lfm2": 0.3, "qwen3-next": 0.3}
)


def build(name: str, *, seed: int | None = None) -> PreTrainedModel:
    """Builds a model by its name in ARCHITECTURES; another seed gives other weights."""
    config = ARCHITECTURES[name]()
    model: PreTrainedModel = getattr(transformers, config.architectures[0])(config)
    deviation = EMBEDDING_DEVIATIONS.get(name, 1.0)
    if name.startswith("gemma"):
        # Gemma multiplies its embeddings by this itself.
        deviation = config.hidden_size**-0.5
    if seed is None:
        return with_weights(model, deviation)
    return with_weights(model, deviation, seed=seed)


def _config(architecture: str, config: type[PretrainedConfig], **facts: Any) -> PretrainedConfig:  # noqa: ANN401
    return config(**{**SIZES, **facts}, architectures=[architecture])


def _gemma3() -> PretrainedConfig:
    kinds = [SLIDING, SLIDING, FULL] * 2
    return _config(
        "Gemma3ForCausalLM",
        transformers.Gemma3TextConfig,
        num_hidden_layers=len(kinds),
        layer_types=kinds,
        sliding_window=WINDOW,
        query_pre_attn_scalar=32,
    )


def _gemma4() -> PretrainedConfig:
    kinds = [SLIDING, SLIDING, FULL] * 2
    return _config(
        "Gemma4ForCausalLM",
        transformers.Gemma4TextConfig,
        num_hidden_layers=len(kinds),
        layer_types=kinds,
        sliding_window=WINDOW,
        global_head_dim=32,
        num_global_key_value_heads=2,
        hidden_size_per_layer_input=0,
        vocab_size_per_layer_input=SIZES["vocab_size"],
    )


def _gpt_oss() -> PretrainedConfig:
    return _config(
        "GptOssForCausalLM",
        transformers.GptOssConfig,
        num_local_experts=4,
        num_experts_per_tok=2,
        layer_types=[SLIDING, FULL] * 2,
        sliding_window=WINDOW,
    )


def _lfm2() -> PretrainedConfig:
    hidden = SIZES["hidden_size"]
    return _config(
        "Lfm2ForCausalLM",
        transformers.Lfm2Config,
        layer_types=["conv", FULL] * 2,
        conv_L_cache=3,
        conv_bias=False,
        conv_dim=hidden,
        block_dim=hidden,
        block_ff_dim=SIZES["intermediate_size"],
        block_multiple_of=32,
        block_ffn_dim_multiplier=1.0,
        block_auto_adjust_ff_dim=False,
    )


def _qwen3_next() -> PretrainedConfig:
    return _config(
        "Qwen3NextForCausalLM",
        transformers.Qwen3NextConfig,
        **DELTA,
        **EXPERTS,
        shared_expert_intermediate_size=64,
        layer_types=["linear_attention", FULL] * 2,
    )


def _qwen3_5() -> PretrainedConfig:
    """Returns the language model alone, of the gated delta rule as Qwen3-Next."""
    return _config(
        "Qwen3_5ForCausalLM",
        transformers.Qwen3_5TextConfig,
        **DELTA,
        layer_types=["linear_attention", FULL] * 2,
    )


def _bamba() -> PretrainedConfig:
    return _config(
        "BambaForCausalLM", transformers.BambaConfig, **MAMBA2, attn_layer_indices=[1, 3]
    )


def _granite4() -> PretrainedConfig:
    return _config(
        "GraniteMoeHybridForCausalLM",
        transformers.GraniteMoeHybridConfig,
        **MAMBA2,
        num_local_experts=0,
        num_experts_per_tok=0,
        shared_intermediate_size=256,
        layer_types=["mamba", "attention"] * 2,
    )


def _jamba() -> PretrainedConfig:
    return _config(
        "JambaForCausalLM",
        transformers.JambaConfig,
        attn_layer_period=2,
        attn_layer_offset=1,
        num_experts=2,
        num_experts_per_tok=1,
        mamba_d_state=16,
        mamba_expand=2,
    )


def _deepseek_v2() -> PretrainedConfig:
    return _config(
        "DeepseekV2ForCausalLM",
        transformers.DeepseekV2Config,
        num_key_value_heads=SIZES["num_attention_heads"],
        head_dim=None,
        # The widths that vLLM's kernel for a CPU takes.
        kv_lora_rank=512,
        qk_rope_head_dim=64,
        q_lora_rank=None,
        qk_nope_head_dim=32,
        v_head_dim=32,
        n_routed_experts=4,
        num_experts_per_tok=2,
        n_shared_experts=1,
        moe_intermediate_size=64,
        first_k_dense_replace=1,
        n_group=1,
        topk_group=1,
        topk_method="greedy",
    )


def _mimo() -> PretrainedConfig:
    """Returns a Qwen 2 that drafts one token itself, which its MTP layer does."""
    return _config("Qwen2ForCausalLM", transformers.Qwen2Config, num_nextn_predict_layers=1)


def _llama() -> PretrainedConfig:
    return _config("LlamaForCausalLM", transformers.LlamaConfig)


def _qwen3() -> PretrainedConfig:
    return _config("Qwen3ForCausalLM", transformers.Qwen3Config)


ARCHITECTURES: Final[Mapping[str, Callable[[], PretrainedConfig]]] = MappingProxyType(
    {
        "bamba": _bamba,
        "deepseek-v2": _deepseek_v2,
        "gemma3": _gemma3,
        "gemma4": _gemma4,
        "gpt-oss": _gpt_oss,
        "granite4": _granite4,
        "jamba": _jamba,
        "lfm2": _lfm2,
        "llama": _llama,
        "mimo": _mimo,
        "qwen3": _qwen3,
        "qwen3-next": _qwen3_next,
        "qwen3.5": _qwen3_5,
    }
)
