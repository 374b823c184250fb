"""Records with the fields that kvstore_vllm reads of vLLM's own."""

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Placeholder:
    """As ``PlaceholderRange``."""

    offset: int
    length: int
    is_embed: Any = None


@dataclass
class Feature:
    """As ``MultiModalFeatureSpec``."""

    identifier: str
    mm_position: Placeholder
    modality: str = "image"


@dataclass
class Lora:
    """As ``LoRARequest``."""

    lora_path: str
    lora_name: str = "adapter"
    lora_int_id: int = 1
    load_inplace: bool = False


@dataclass
class PromptRequest:
    """As ``Request``, before anything was generated."""

    prompt_token_ids: list[int] | None
    cache_salt: str | None = None
    lora_request: Lora | None = None
    mm_features: list[Feature] = field(default_factory=list)
    prompt_embeds: Any = None
    resumable: bool = False
    skip_reading_prefix_cache: bool = False


@dataclass
class Mask:
    """A tensor of bool, as far as it is read."""

    values: list[bool]

    def tolist(self) -> list[bool]:
        """Returns its values."""
        return self.values


@dataclass
class ModelFacts:
    """As ``ModelConfig``."""

    model: str
    hf_config: Any = field(default_factory=dict)
    dtype: str = "bfloat16"
    seed: int = 0
    max_model_len: int = 4096
    quantization: str | None = None
    revision: str | None = None
    code_revision: str | None = None
    trust_remote_code: bool = False
    served_model_name: str | list[str] | None = None
    hf_token: str | None = None
    enforce_eager: bool = False
    model_weights: str = ""
    multimodal_config: Any = None
    is_prefix_caching_supported: bool = True
    use_mla: bool = False


@dataclass
class CacheFacts:
    """As ``CacheConfig``."""

    cache_dtype: str = "auto"
    block_size: int = 16
    gpu_memory_utilization: float = 0.9
    enable_prefix_caching: bool = True


@dataclass
class ParallelFacts:
    """As ``ParallelConfig``."""

    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    prefill_context_parallel_size: int = 1
    decode_context_parallel_size: int = 1
    data_parallel_rank: int = 0


@dataclass
class LoadFacts:
    """As ``LoadConfig``."""

    load_format: str = "auto"
    download_dir: str | None = None


@dataclass
class AttentionFacts:
    """As ``AttentionConfig``."""

    backend: str | None = None
    use_non_causal: bool = False


@dataclass
class DraftFacts:
    """As ``SpeculativeConfig``."""

    method: str
    draft_model_config: ModelFacts | None = None
    draft_load_config: LoadFacts | None = None
    kv_cache_dtype: str | None = None


@dataclass
class EngineFacts:
    """As ``VllmConfig``."""

    model_config: ModelFacts
    cache_config: CacheFacts = field(default_factory=CacheFacts)
    parallel_config: ParallelFacts = field(default_factory=ParallelFacts)
    load_config: LoadFacts = field(default_factory=LoadFacts)
    attention_config: AttentionFacts = field(default_factory=AttentionFacts)
    speculative_config: DraftFacts | None = None
    lora_config: Any = None
    diffusion_config: Any = None
    instance_id: str = ""
    additional_config: Any = field(default_factory=dict)
