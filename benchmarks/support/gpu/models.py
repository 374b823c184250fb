"""Models of Qwen3's shapes with random weights, made on their device."""

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel, Qwen3Config

# Shapes of Qwen3 as published, by size. "tiny" only serves to try the code.
SHAPES: dict[str, dict[str, int]] = {
    "8b": {
        "vocab_size": 151_936,
        "hidden_size": 4096,
        "intermediate_size": 12_288,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 40_960,
    },
    "1.7b": {
        "vocab_size": 151_936,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 40_960,
    },
    "tiny": {
        "vocab_size": 256,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 4096,
    },
}


def build_model(name: str, device: str) -> PreTrainedModel:
    """Builds a random model, in bfloat16 on a GPU. Raises ``KeyError`` for an unknown name."""
    special = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
    config = Qwen3Config(**SHAPES[name], **special, tie_word_embeddings=False)
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    with torch.device(device):
        torch.manual_seed(1)
        return AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
