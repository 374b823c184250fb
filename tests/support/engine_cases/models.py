"""Folders of tiny random models, with a tokenizer of bytes and a LoRA adapter."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from transformers.utils.logging import disable_progress_bar

from engine_cases.architectures import build

ADAPTER_RANK = 8
# Large enough that an adapter changes answers.
ADAPTER_DEVIATION = 0.3


def save_model(name: str, folder: Path, *, seed: int | None = None, **changes: object) -> Path:
    """Saves a tiny model, such as ``qwen3``, with the tokenizer that vLLM's server needs.

    ``changes`` are of its configuration, such as a longer sliding window.
    """
    # Written in less time than a bar takes to read.
    disable_progress_bar()
    build(name, seed=seed).save_pretrained(folder)
    config = folder / "config.json"
    described = json.loads(config.read_text(encoding="utf-8")) | changes
    config.write_text(json.dumps(described), encoding="utf-8")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    bytewise = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    bytewise.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytewise.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=bytewise).save_pretrained(folder)
    return folder


def save_adapter(model: Path, folder: Path, seed: int) -> Path:
    """Saves a random LoRA adapter of a model's query and value projections, in PEFT's format.

    SGLang's loader refuses an adapter that has a value projection and no query projection.
    """
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    hidden = config["hidden_size"]
    heads = {"q_proj": config["num_attention_heads"], "v_proj": config["num_key_value_heads"]}
    numbers = torch.Generator().manual_seed(seed)
    weights = {}
    for layer in range(config["num_hidden_layers"]):
        for projection, count in heads.items():
            stem = f"base_model.model.model.layers.{layer}.self_attn.{projection}"
            for part, shape in (
                ("lora_A", (ADAPTER_RANK, hidden)),
                ("lora_B", (count * config["head_dim"], ADAPTER_RANK)),
            ):
                weights[f"{stem}.{part}.weight"] = ADAPTER_DEVIATION * torch.randn(
                    shape, generator=numbers
                )
    folder.mkdir()
    save_file(weights, folder / "adapter_model.safetensors")
    facts = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": model.name,
        "r": ADAPTER_RANK,
        "lora_alpha": ADAPTER_RANK,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": list(heads),
    }
    (folder / "adapter_config.json").write_text(json.dumps(facts), encoding="utf-8")
    return folder
