"""Random drafts of tiny models: EAGLE's folders, and the layers of a model that drafts itself."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import torch
from safetensors.torch import load_file, save_file

from inference_worker.model.tiny import SIZES

SEED: Final = 20_261_123
HIDDEN: Final = SIZES["hidden_size"]
HEADS: Final = SIZES["num_attention_heads"] * SIZES["head_dim"]
KV_HEADS: Final = SIZES["num_key_value_heads"] * SIZES["head_dim"]
# EAGLE 3 reads the hidden states of as many layers.
STATES_READ: Final = (1, 2, 3)
MTP: Final = "model.mtp_layers.0."


def save_eagle(folder: Path) -> Path:
    """Saves a draft for a tiny Llama: one layer over a token and the hidden state before it."""
    shapes = {"fc.weight": (HIDDEN, 2 * HIDDEN), **_layer("layers.0", HIDDEN)}
    norms = ["layers.0.post_attention_layernorm.weight"]
    return _save(folder, "LlamaForCausalLM", shapes, norms)


def save_eagle3(folder: Path) -> Path:
    """Saves a draft for a tiny Llama that reads the hidden states of three layers."""
    shapes = {
        "fc.weight": (HIDDEN, len(STATES_READ) * HIDDEN),
        "lm_head.weight": (SIZES["vocab_size"], HIDDEN),
        **_layer("midlayer", 2 * HIDDEN),
    }
    norms = ["norm.weight"]
    norms += [
        f"midlayer.{name}.weight"
        for name in ("input_layernorm", "hidden_norm", "post_attention_layernorm")
    ]
    facts = {"eagle_aux_hidden_state_layer_ids": list(STATES_READ)}
    return _save(folder, "LlamaForCausalLMEagle3", shapes, norms, facts)


def add_mtp_layer(folder: Path) -> Path:
    """Makes the Qwen 2 of a folder a MiMo, whose own layer drafts one token ahead."""
    file = folder / "model.safetensors"
    weights = load_file(file)
    copied = "model.layers.1."
    weights |= {
        MTP + name.removeprefix(copied): weight.clone()
        for name, weight in weights.items()
        if name.startswith(copied)
    }
    weights |= _random({MTP + "input_proj.weight": (HIDDEN, 2 * HIDDEN)})
    weights |= {
        f"{MTP}{name}.weight": torch.ones(HIDDEN)
        for name in ("token_layernorm", "hidden_layernorm", "final_layernorm")
    }
    save_file(weights, file, metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["architectures"] = ["MiMoForCausalLM"]
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def _layer(name: str, attention_inputs: int) -> dict[str, tuple[int, int]]:
    """Returns the shapes of a Llama layer's matrices."""
    inner = SIZES["intermediate_size"]
    return {
        f"{name}.self_attn.q_proj.weight": (HEADS, attention_inputs),
        f"{name}.self_attn.k_proj.weight": (KV_HEADS, attention_inputs),
        f"{name}.self_attn.v_proj.weight": (KV_HEADS, attention_inputs),
        f"{name}.self_attn.o_proj.weight": (HIDDEN, HEADS),
        f"{name}.mlp.gate_proj.weight": (inner, HIDDEN),
        f"{name}.mlp.up_proj.weight": (inner, HIDDEN),
        f"{name}.mlp.down_proj.weight": (HIDDEN, inner),
    }


def _random(shapes: Mapping[str, tuple[int, int]]) -> dict[str, torch.Tensor]:
    numbers = torch.Generator().manual_seed(SEED)
    return {
        name: torch.randn(shape, generator=numbers) / shape[1] ** 0.5
        for name, shape in sorted(shapes.items())
    }


def _save(
    folder: Path,
    architecture: str,
    shapes: Mapping[str, tuple[int, int]],
    norms: list[str],
    facts: Mapping[str, object] | None = None,
) -> Path:
    folder.mkdir()
    weights = _random(shapes) | {name: torch.ones(HIDDEN) for name in norms}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = {
        **SIZES,
        "model_type": "llama",
        "architectures": [architecture],
        "num_hidden_layers": 1,
        "draft_vocab_size": SIZES["vocab_size"],
        "hidden_act": "silu",
        "dtype": "float32",
        **(facts or {}),
    }
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder
