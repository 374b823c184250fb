"""Small random models whose tokens are bytes, for tests and for a demo without a download.

Their weights are scaled so that attention matters and the best next token leads by far. A differing
token is therefore a wrong page, not rounding.
"""

from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType
from typing import Final

import torch
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from transformers.utils.logging import disable_progress_bar

from inference_worker.model.cache import build_once
from inference_worker.model.tokenizer import BYTE_VALUES

SEED: Final = 20_250_101
# Part of the cached folder's name: grows with each change below that gives other weights.
VERSION: Final = 1
WINDOW: Final = 32

# Sizes of every tiny model, under the names of most configurations.
SIZES: Final = MappingProxyType(
    {
        "vocab_size": BYTE_VALUES,
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }
)

# Norms of queries and keys, by the names of several architectures.
HEAD_NORMS: Final = tuple(
    f"{part}{norm}.weight" for part in ("q_", "k_") for norm in ("norm", "layernorm")
)

# Each gain is a standard deviation of weights times the square root of their inputs.
_BRANCH_GAIN: Final = 1.0
# Sharp attention: a query finds a few keys, so a single wrong page changes the answer.
_QUERY_GAIN: Final = 2.0
# Logits spread over this many units, so the best two of 256 are some units apart.
_LOGIT_GAIN: Final = 20.0


def build_qwen3() -> PreTrainedModel:
    """Builds a random Qwen3 with fixed weights; the same on each call."""
    return with_weights(Qwen3ForCausalLM(Qwen3Config(**SIZES)))


def build_llama() -> PreTrainedModel:
    """Builds a random Llama with fixed weights; the same on each call."""
    return with_weights(LlamaForCausalLM(LlamaConfig(**SIZES)))


def build_gemma3() -> PreTrainedModel:
    """Builds a random Gemma 3: two sliding layers of 32 tokens before each full one."""
    kinds = ["sliding_attention", "sliding_attention", "full_attention"] * 2
    sizes = {**SIZES, "num_hidden_layers": len(kinds), "query_pre_attn_scalar": 32}
    config = Gemma3TextConfig(**sizes, layer_types=kinds, sliding_window=WINDOW)
    # Gemma multiplies its embeddings by this itself.
    scale = config.hidden_size**0.5
    return with_weights(Gemma3ForCausalLM(config), embedding_deviation=1 / scale)


TINY_MODELS: Final[MappingProxyType[str, Callable[[], PreTrainedModel]]] = MappingProxyType(
    {"gemma3": build_gemma3, "llama": build_llama, "qwen3": build_qwen3}
)


def tiny_folder(name: str = "qwen3") -> Path:
    """Returns the cached folder of a tiny model, built on first use; raises ``KeyError``."""
    build = TINY_MODELS[name]

    def save(folder: Path) -> None:
        # Writing takes less time than reading a progress bar.
        disable_progress_bar()
        build().save_pretrained(folder)

    return build_once(f"tiny-{name}-{VERSION}", save)


def with_weights(
    module: PreTrainedModel, embedding_deviation: float = 1.0, *, seed: int = SEED
) -> PreTrainedModel:
    """Overwrites every weight, by name and in order, without touching torch's own generator."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in sorted(module.named_parameters()):
            if weight.dim() == 1:
                # Norms keep their initial values; query and key norms sharpen the attention.
                if name.endswith(HEAD_NORMS):
                    weight.add_(_QUERY_GAIN**0.5 - 1)
                continue
            deviation = _gain(name) / weight.shape[1] ** 0.5
            if "embed_tokens" in name:
                deviation = embedding_deviation
            weight.normal_(0.0, deviation, generator=generator)
    return module.eval()


def _gain(name: str) -> float:
    if "lm_head" in name:
        return _LOGIT_GAIN
    if name.endswith(("q_proj.weight", "k_proj.weight")):
        return _QUERY_GAIN
    return _BRANCH_GAIN
