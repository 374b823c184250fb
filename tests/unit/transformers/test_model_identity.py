"""A model's identity is its folder's while it matches the folder, and its own otherwise."""

from pathlib import Path

import pytest
import torch
from huggingface_hub import constants
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaModel,
    PreTrainedModel,
)

from inference_worker.model.tiny import tiny_folder
from kvstore_transformers.model_identity import (
    is_of_folder,
    model_digest,
    weights_folder,
    weights_stamp,
)
from kvstore_transformers.weights_digest import folder_digest, module_digest


class Tuned(LlamaForCausalLM):  # type: ignore[misc]  # transformers is not typed
    """A class of the test's own, which may compute anything."""


def loaded(folder: Path, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """Loads a folder like a script does."""
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    return model


@pytest.fixture(scope="module")
def folder(cache: None) -> Path:
    """Returns a model's folder."""
    del cache
    return tiny_folder("llama")


@pytest.mark.parametrize("name", ["gemma3", "llama", "qwen3"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_was_loaded_is_the_folder_s(name: str, dtype: torch.dtype) -> None:
    """A loaded model has the folder's digest for any dtype, which only the layout has."""
    there = tiny_folder(name)
    assert model_digest(loaded(there, dtype)) == folder_digest(there)


def test_tied_weights_are_in_a_file_once(tmp_path: Path) -> None:
    """Tied output weights are looked up as the embeddings' weights."""
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    config = LlamaConfig(vocab_size=32, num_attention_heads=2, tie_word_embeddings=True, **sizes)
    LlamaForCausalLM(config).save_pretrained(tmp_path)
    model = loaded(tmp_path)
    assert model_digest(model) == folder_digest(tmp_path)
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    assert not is_of_folder(model, tmp_path)


def test_what_was_changed_is_its_own(folder: Path) -> None:
    """A changed weight, configuration or class gives the model an identity of its own."""
    model = loaded(folder)
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[3, 4] += 1e-6
    assert model_digest(model) == module_digest(model) != folder_digest(folder)
    model = loaded(folder)
    model.config.rope_parameters["rope_theta"] = 20_000.0
    assert not is_of_folder(model, folder)
    assert not is_of_folder(Tuned.from_pretrained(folder), folder)
    assert not is_of_folder(LlamaModel.from_pretrained(folder), folder)


def test_a_folder_that_changed_is_not_the_model_s(folder: Path, tmp_path: Path) -> None:
    """A folder without the model's weights is not its folder."""
    model = loaded(folder)
    assert not is_of_folder(model, tmp_path)
    model.save_pretrained(tmp_path)
    assert is_of_folder(model, tmp_path)
    (tmp_path / "more.safetensors").write_bytes((tmp_path / "model.safetensors").read_bytes())
    assert is_of_folder(model, tmp_path)
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "more.safetensors").unlink()
    assert not is_of_folder(model, tmp_path)


def test_a_model_that_was_built_has_no_folder(stock_models: dict[str, PreTrainedModel]) -> None:
    """A built model has no folder, not even the program's current one."""
    model = stock_models["qwen3"]
    assert weights_folder(model) is None
    assert model_digest(model) == module_digest(model)


def test_a_name_of_the_hub_is_its_folder_in_the_hub_s_cache(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hub's name is looked up in the local cache alone, without a request."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    model = loaded(folder)
    model.config._name_or_path = "somebody/something"
    assert weights_folder(model) is None
    revision = "0" * 40
    snapshot = tmp_path / "models--somebody--something" / "snapshots" / revision
    model.save_pretrained(snapshot)
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs" / "main").write_text(revision)
    assert weights_folder(model) == snapshot
    assert model_digest(model) == folder_digest(snapshot)
    model.config._name_or_path = "no name: of the hub's/"
    assert weights_folder(model) is None


def test_the_place_is_no_part_of_a_built_model_s_digest(
    stock_models: dict[str, PreTrainedModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A built model's digest depends on its class, but not on its place."""
    model = stock_models["llama"]
    before = module_digest(model)
    monkeypatch.setattr(model.config, "_name_or_path", "/somewhere/else")
    assert module_digest(model) == before
    monkeypatch.setattr(model, "__class__", Tuned)
    assert module_digest(model) != before


def test_a_weight_that_is_written_changes_the_stamp(folder: Path) -> None:
    """A weight that is changed, replaced or converted changes the stamp, and reading does not."""
    model = loaded(folder)
    stamps = [weights_stamp(model)]
    assert weights_stamp(model) == stamps[0]
    with torch.no_grad():
        model.lm_head.weight[0, 0] += 1
    stamps.append(weights_stamp(model))
    model.lm_head.weight = torch.nn.Parameter(torch.zeros_like(model.lm_head.weight))
    stamps.append(weights_stamp(model))
    stamps.append(weights_stamp(model.bfloat16()))
    assert len(set(stamps)) == 4
    with torch.inference_mode():
        built = torch.nn.Linear(2, 2)
    assert weights_stamp(built) == weights_stamp(built)  # type: ignore[arg-type]  # any module
