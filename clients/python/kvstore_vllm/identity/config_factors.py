"""Which of vLLM's settings decide over KV: the checklist behind docs/vllm-identity.md.

A field counts unless it is named here as one that does not: what a new version adds keeps
engines apart until somebody has looked at it. Some decide by rounding alone: which kernel runs,
how it was compiled, what else is in the batch. One engine's own KV differs by as much from
request to request, so those do not count.
"""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from kvstore_vllm.identity.canonical import UnidentifiableModel, canonical_json

# Of VllmConfig: parts of which nothing decides over KV.
PARTS_LEFT_OUT: Final = frozenset(
    {
        # How requests are queued, shown, ended, published, watched.
        "scheduler_config",
        "structured_outputs_config",
        "observability_config",
        "logging_config",
        "profiler_config",
        "kv_transfer_config",
        "kv_events_config",
        "ec_transfer_config",
        "ec_manager_config",
        "reasoning_config",
        "watermark_config",
        "aux_output_config",
        "instance_id",
        "shutdown_timeout",
        # By rounding alone.
        "compilation_config",
        "optimization_level",
        "performance_mode",
        # Where weights are kept; how they are sent anew, after which the cache is reset.
        "offload_config",
        "engram_config",
        "weight_transfer_config",
        # Of models that are refused.
        "mamba_config",
        "diffusion_config",
        # What it says is in model_config and in the model's files.
        "quant_config",
        # Part of an adapter's digest, so that engines without one share with those that have.
        "lora_config",
        # Looked at by itself.
        "speculative_config",
    }
)
# Part -> its fields that do not decide over KV.
FIELDS_LEFT_OUT: Final[Mapping[str, frozenset[str]]] = {
    "model_config": frozenset(
        {
            # Names of the weights, which are digested themselves; a secret.
            *("model", "model_weights", "served_model_name", "hf_token", "revision"),
            # Where hf_config came from, and a part of it.
            *("hf_config_path", "hf_overrides", "config_format", "hf_text_config"),
            # From text to tokens, and from logits to tokens.
            *("tokenizer", "tokenizer_mode", "tokenizer_revision", "skip_tokenizer_init"),
            *("allowed_local_media_path", "allowed_media_domains", "renderer_num_workers"),
            *("generation_config", "override_generation_config", "logits_processors"),
            *("return_sampling_mask", "max_logprobs", "logprobs_mode", "use_fp64_gumbel"),
            *("enable_trace_replay", "io_processor_plugin", "pooler_config"),
            *("enable_prompt_embeds", "word_embeddings_untied_by_checkpoint"),
            # Of sampling; of weights it is where they are made up, see the weights' digest.
            "seed",
            # How it runs, and what for.
            "runner",
            *("enforce_eager", "disable_cascade_attn", "allow_deprecated_quantization"),
            *("enable_sleep_mode", "sleep_preserve_parameter_names", "sleep_mode_backend"),
            *("sleep_mode_offload_cudagraph", "enable_nccl_comm_suspend"),
            *("enable_cumem_allocator", "is_submodel_config", "spec_target_max_model_len"),
            # Looked at by itself.
            "multimodal_config",
        }
    ),
    "cache_config": frozenset(
        {
            # How much there is, and what is found again in it.
            *("gpu_memory_utilization", "kv_cache_memory_bytes", "num_gpu_blocks_override"),
            *("num_gpu_blocks", "num_cpu_blocks", "kv_cache_size_tokens"),
            *("kv_cache_max_concurrency", "effective_attention_block_size"),
            *("enable_prefix_caching", "prefix_caching_hash_algo", "prefix_match_unit"),
            *("prefix_cache_retention_interval", "hash_block_size"),
            *("cache_hit_alignment_tokens", "kv_offloading_size", "kv_offloading_backend"),
            # In the page's layout.
            *("block_size", "user_specified_block_size", "kv_cache_layout"),
            *("_block_size_resolved", "skip_page_size_padded", "is_attention_free"),
            # Of models that are refused.
            *("mamba_page_size_padded", "mamba_block_size", "mamba_cache_dtype"),
            *("mamba_ssm_cache_dtype", "mamba_cache_mode", "replayssm_buffer_len"),
            *("enable_mamba_shared_prefix_checkpoint", "use_replayssm", "use_kda_recoverssm"),
        }
    ),
    "kernel_config": frozenset(
        {
            # By rounding alone; a kernel that quantizes in its own way counts.
            *("ir_op_priority", "enable_flashinfer_autotune", "enable_cutedsl_warmup"),
            *("enable_rocm_segmented_attn_autotune", "enable_jit_warmup"),
        }
    ),
    "load_config": frozenset(
        {
            *("download_dir", "safetensors_prefetch_num_threads", "device"),
            *("safetensors_prefetch_block_size", "use_tqdm_on_load", "pt_load_map_location"),
        }
    ),
    # Which device of its kind is the platform's.
    "device_config": frozenset({"device"}),
    "attention_config": frozenset(),
    "multimodal_config": frozenset(
        {
            # How many inputs there may be, how they travel, where they are kept.
            *("limit_per_prompt", "enable_mm_embeds", "mm_processor_cache_gb"),
            *("mm_processor_cache_type", "mm_hasher_algorithm", "mm_tensor_ipc"),
            *("mm_shm_cache_max_object_size_mb", "skip_mm_profiling", "mm_ipc_gpu_memory_gb"),
            *("mm_encoder_tp_mode", "interleave_mm_strings", "mm_encoder_only"),
            *("mm_encoder_fp8_scale_save_path", "mm_encoder_fp8_scale_save_margin"),
        }
    ),
}
# Of ParallelConfig: what decides over which part of the heads a rank has; the rest of it is about
# where processes run, and rounds.
PARALLEL_FIELDS: Final = frozenset({"tensor_parallel_size"})
# Of LoRAConfig: what decides over an adapter's KV; the rest is about how many there may be.
LORA_FIELDS: Final = frozenset(
    {
        *("lora_dtype", "target_modules", "enable_tower_connector_lora"),
        *("enable_mixed_moe_lora_format", "enable_moe_shared_loras"),
    }
)


def config_factors(vllm_config: Any) -> dict[str, bytes]:  # noqa: ANN401  # a VllmConfig
    """Returns each setting that decides over KV as JSON, by its name.

    Raises ``UnidentifiableModel`` for one whose value cannot be told.
    """
    factors: dict[str, bytes] = {}
    for part in _names(vllm_config):
        if part not in PARTS_LEFT_OUT and part != "parallel_config":
            factors |= part_factors(part, getattr(vllm_config, part))
    multimodal = getattr(vllm_config.model_config, "multimodal_config", None)
    factors |= part_factors("multimodal_config", multimodal)
    scales = getattr(multimodal, "mm_encoder_fp8_scale_path", None)
    if scales:
        # Its name is among the factors; what is in it decides.
        try:
            factors["multimodal scales"] = sha256(Path(scales).read_bytes()).digest()
        except OSError as error:
            raise UnidentifiableModel(f"mm_encoder_fp8_scale_path: {error}") from error
    parallel = vllm_config.parallel_config
    for name in sorted(PARALLEL_FIELDS):
        factors[f"parallel_config.{name}"] = canonical_json(getattr(parallel, name), name)
    return factors


def part_factors(part: str, value: Any) -> dict[str, bytes]:  # noqa: ANN401  # a part of a VllmConfig
    """Returns what counts of one part; of a part that is not known, all."""
    left_out = FIELDS_LEFT_OUT.get(part, frozenset())
    if value is None or not is_dataclass(value):
        return {part: canonical_json(value, part)}
    names = [name for name in _names(value) if name not in left_out]
    return {
        f"{part}.{name}": canonical_json(getattr(value, name, None), f"{part}.{name}")
        for name in names
    }


def adapter_facts(lora_config: Any) -> dict[str, str]:  # noqa: ANN401  # a LoRAConfig, or None
    """Returns what of the engine decides over its adapters' KV."""
    if lora_config is None:
        return {}
    return {
        name: canonical_json(getattr(lora_config, name, None), f"lora_config.{name}").decode()
        for name in sorted(LORA_FIELDS)
    }


def _names(config: Any) -> list[str]:  # noqa: ANN401  # a dataclass of vLLM's
    if not is_dataclass(config):
        raise UnidentifiableModel(f"{type(config).__name__} is no configuration of vLLM's")
    return [each.name for each in fields(config)]
