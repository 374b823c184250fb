"""A llama.cpp file of Gemma 3 is converted back to the folder of its model."""

import json
import sys
from importlib.util import find_spec, module_from_spec
from pathlib import Path

import pytest
import torch
from gguf import GGMLQuantizationType, GGUFWriter
from rich.console import Console
from rich.progress import Progress
from transformers import AutoModelForCausalLM, PreTrainedModel

from inference_worker.model.gemma import convert_gguf
from inference_worker.model.model import load_model
from inference_worker.model.tiny import build_gemma3

NAMES = {
    "embed_tokens": "token_embd",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "post_feedforward_layernorm": "post_ffw_norm",
}
# <pad>, <eos>, <bos> and <unk>, then the words that a tokenizer needs, then any others.
WORDS = ["<pad>", "<eos>", "<bos>", "<unk>", "a", "b", "ab", "\u2581"]
WORDS += [f"<unused{i}>" for i in range(256 - len(WORDS))]


@pytest.fixture(scope="module")
def module() -> PreTrainedModel:
    """Returns the model of the file, which ties input and output embeddings as Gemma does."""
    module = build_gemma3()
    module.config.tie_word_embeddings = True
    module.lm_head.weight = module.model.embed_tokens.weight
    return module


@pytest.fixture(scope="module")
def source(module: PreTrainedModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Writes the model as llama.cpp does."""
    path = tmp_path_factory.mktemp("gguf") / "model.gguf"
    config, writer = module.config, GGUFWriter(path, "gemma3")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_freq_base(1_000_000.0)
    writer.add_sliding_window(config.sliding_window)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(WORDS)
    writer.add_token_scores([0.0] * len(WORDS))
    writer.add_token_types([3] * 4 + [1] * 4 + [5] * (len(WORDS) - 8))
    writer.add_bos_token_id(2)
    writer.add_eos_token_id(1)
    writer.add_pad_token_id(0)
    writer.add_unk_token_id(3)
    for name, weight in module.model.state_dict().items():
        _, _, layer = name.partition("layers.")
        index, _, rest = layer.partition(".")
        key = (rest or name).removesuffix(".weight")
        target = f"blk.{index}.{NAMES[key]}" if layer else NAMES.get(key, "output_norm")
        values = weight.detach() + (1.0 if target.endswith("norm") else 0.0)
        writer.add_tensor(f"{target}.weight", values.numpy(), raw_dtype=GGMLQuantizationType.F32)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def folder(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Converts the file."""
    folder = tmp_path_factory.mktemp("folder")
    with Progress(console=Console(quiet=True)) as progress:
        convert_gguf(source, folder, progress)
    return folder


def test_the_weights_are_the_models(module: PreTrainedModel, folder: Path) -> None:
    """Every weight returns under its own name, exactly but for the rounding of norms."""
    loaded = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).state_dict()
    for name, weight in module.state_dict().items():
        assert torch.allclose(loaded[name], weight, atol=1e-6 if name.endswith("norm") else 0)


def test_the_configuration_is_the_files(module: PreTrainedModel, folder: Path) -> None:
    """Sizes come from the file, and layers are five sliding ones to one full one."""
    config = json.loads((folder / "config.json").read_text())
    for name in ("hidden_size", "intermediate_size", "head_dim", "sliding_window", "vocab_size"):
        assert config[name] == getattr(module.config, name)
    assert config["layer_types"] == ["sliding_attention"] * 5 + ["full_attention"]
    assert (config["bos_token_id"], config["eos_token_id"], config["pad_token_id"]) == (2, 1, 0)


def test_the_folder_is_served(folder: Path) -> None:
    """The folder loads with its own tokenizer and passes the self-check."""
    model = load_model(folder)
    assert model.tokenizer.begin_ids == [2]
    assert model.end_ids == {1}
    assert model.tokenizer.decode(model.tokenizer.encode("ab a")) == "ab a"


def test_a_file_of_another_model_is_refused(tmp_path: Path) -> None:
    """The error names a weight that Gemma 3 does not have."""
    writer = GGUFWriter(tmp_path / "other.gguf", "gemma3")
    writer.add_tensor("blk.0.ssm_conv.weight", torch.zeros(4, 4).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with Progress(console=Console(quiet=True)) as progress, pytest.raises(KeyError, match="ssm"):
        convert_gguf(tmp_path / "other.gguf", tmp_path, progress)


def test_other_models_need_no_reader_of_its_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """The module for Gemma files can be imported without the package gguf."""
    monkeypatch.setitem(sys.modules, "gguf", None)
    spec = find_spec("inference_worker.model.gemma")
    assert spec is not None
    assert spec.loader is not None
    spec.loader.exec_module(module_from_spec(spec))
