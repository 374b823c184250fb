"""The checklist of settings against vLLM's own, and a real configuration's digest."""

import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM
from vllm.config import (
    AttentionConfig,
    CacheConfig,
    DeviceConfig,
    KernelConfig,
    LoadConfig,
    LoRAConfig,
    ModelConfig,
    MultiModalConfig,
    ParallelConfig,
    VllmConfig,
)
from vllm.engine.arg_utils import EngineArgs

from kvstore_client.engines.canonical import UnidentifiableModel
from kvstore_vllm.engine.connector_settings import ConnectorSettings
from kvstore_vllm.identity.config_factors import (
    FIELDS_LEFT_OUT,
    LORA_FIELDS,
    PARALLEL_FIELDS,
    PARTS_LEFT_OUT,
    config_factors,
)
from kvstore_vllm.identity.model import model_identity

PAGE_OF_THE_CHECKLIST = Path(__file__).parents[2] / "docs" / "vllm-identity.md"
PARTS = {
    "model_config": ModelConfig,
    "cache_config": CacheConfig,
    "kernel_config": KernelConfig,
    "load_config": LoadConfig,
    "device_config": DeviceConfig,
    "attention_config": AttentionConfig,
    "multimodal_config": MultiModalConfig,
}
SETTINGS = ConnectorSettings()


def names_of(config: type) -> set[str]:
    """Returns the fields of one of vLLM's configurations."""
    return {each.name for each in fields(config)}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model's folder."""
    folder = tmp_path_factory.mktemp("model")
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "head_dim": 32}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1}
    config = Qwen3Config(vocab_size=256, max_position_embeddings=512, **sizes, **heads)
    Qwen3ForCausalLM(config).save_pretrained(folder)
    return folder


def configure(model: Path, **arguments: object) -> VllmConfig:
    """Configure an engine as it would be started."""
    defaults = {"dtype": "float32", "block_size": 32, "skip_tokenizer_init": True}
    return EngineArgs(model=str(model), **(defaults | arguments)).create_engine_config()


def digest(config: VllmConfig) -> bytes:
    """Returns its digest."""
    return model_identity(config, SETTINGS).model_digest


def test_every_setting_is_on_the_checklist() -> None:
    """Every setting of vLLM is on the checklist, so a new version's settings have to be judged."""
    text = PAGE_OF_THE_CHECKLIST.read_text(encoding="utf-8")
    counted = {part: names_of(config) - FIELDS_LEFT_OUT[part] for part, config in PARTS.items()}
    counted |= {"parallel_config": set(PARALLEL_FIELDS), "lora_config": set(LORA_FIELDS)}
    for part, names in counted.items():
        [line] = [each for each in text.splitlines() if each.startswith(f"| `{part}`")]
        assert set(line.split("|")[2].replace("`", "").replace(",", " ").split()) == names
    known = {*PARTS, *PARTS_LEFT_OUT, "parallel_config", "additional_config"}
    assert names_of(VllmConfig) - known == set()


def test_the_checklist_names_nothing_that_is_gone() -> None:
    """A name that vLLM no longer has hides nothing."""
    assert names_of(VllmConfig) >= PARTS_LEFT_OUT
    for part, left_out in FIELDS_LEFT_OUT.items():
        assert names_of(PARTS[part]) >= left_out
    assert names_of(ParallelConfig) >= PARALLEL_FIELDS
    assert names_of(LoRAConfig) >= LORA_FIELDS


def test_what_is_set_otherwise_is_another_namespace(model: Path) -> None:
    """A real engine's arguments that decide over KV change the namespace, and others do not."""
    before = digest(configure(model))
    for same in (
        {"enforce_eager": True},
        {"gpu_memory_utilization": 0.3},
        {"max_num_seqs": 3},
        {"served_model_name": "other"},
        {"enable_prefix_caching": False},
        {"seed": 7},
        {"enable_lora": True},
    ):
        assert digest(configure(model, **same)) == before, same
    for other in (
        {"dtype": "bfloat16"},
        {"max_model_len": 256},
        {"hf_overrides": {"rope_theta": 5e5}},
        {"hf_overrides": {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}},
        {"load_format": "dummy"},
        {"tensor_parallel_size": 2, "distributed_executor_backend": "mp"},
    ):
        assert digest(configure(model, **other)) != before, other


def test_pipelines_are_refused(model: Path) -> None:
    """Each stage has other layers."""
    arguments = {"pipeline_parallel_size": 2, "distributed_executor_backend": "mp"}
    with pytest.raises(UnidentifiableModel, match="pipeline_parallel_size"):
        digest(configure(model, **arguments))


def test_another_process_comes_to_the_same_digest(model: Path) -> None:
    """With other hash seeds, from another folder, of another name."""
    copy = model.parent / "copied"
    copy.mkdir()
    for each in model.iterdir():
        (copy / each.name).write_bytes(each.read_bytes())
    code = (
        "import sys; sys.path[:0] = sys.argv[2:]; from test_real_identity import *; "
        "print(digest(configure(Path(sys.argv[1]))).hex())"
    )
    command = [sys.executable, "-c", code, str(copy), str(Path(__file__).parent)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split()[-1] == digest(configure(model)).hex()


def test_a_real_configuration_has_no_path_in_it(model: Path) -> None:
    """Nothing that counts names the folder."""
    assert str(model) not in str(config_factors(configure(model)))
