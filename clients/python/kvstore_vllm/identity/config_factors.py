"""The vLLM settings that decide over KV: the checklist behind docs/vllm-identity.md.

A field counts unless this module lists it as one that does not. A field that a new version adds
keeps engines apart until somebody has checked it. Some settings decide by rounding alone: the
kernel, its compilation, the rest of the batch. One engine's own KV differs by as much from request
to request, so those do not count.
"""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from kvstore_client.engines.canonical import UnidentifiableModel, canonical_json

# Parts of VllmConfig without influence on KV.
PARTS_LEFT_OUT: Final = frozenset(
    {
        # Queueing, display, end, publishing and watching of requests.
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
        # The place of weights, and their later updates, after which the cache is reset.
        "offload_config",
        "engram_config",
        "weight_transfer_config",
        # Parts of models that are refused.
        "mamba_config",
        "diffusion_config",
        # Its content is in model_config and in the model's files.
        "quant_config",
        # Part of an adapter's digest, so that engines without one share with those that have.
        "lora_config",
        # Checked separately.
        "speculative_config",
    }
)
# Part -> its fields without influence on KV.
FIELDS_LEFT_OUT: Final[Mapping[str, frozenset[str]]] = {
    "model_config": frozenset(
        {
            # Names of the weights, which are digested themselves; a secret.
            *("model", "model_weights", "served_model_name", "hf_token", "revision"),
            # The origin of hf_config, and a part of it.
            *("hf_config_path", "hf_overrides", "config_format", "hf_text_config"),
            # From text to tokens, and from logits to tokens.
            *("tokenizer", "tokenizer_mode", "tokenizer_revision", "skip_tokenizer_init"),
            *("allowed_local_media_path", "allowed_media_domains", "renderer_num_workers"),
            *("generation_config", "override_generation_config", "logits_processors"),
            *("return_sampling_mask", "max_logprobs", "logprobs_mode", "use_fp64_gumbel"),
            *("enable_trace_replay", "io_processor_plugin", "pooler_config"),
            *("enable_prompt_embeds", "word_embeddings_untied_by_checkpoint"),
            # Fields of sampling; a dummy model's seed is in the weights' digest.
            "seed",
            # Ways and purposes of running.
            "runner",
            *("enforce_eager", "disable_cascade_attn", "allow_deprecated_quantization"),
            *("enable_sleep_mode", "sleep_preserve_parameter_names", "sleep_mode_backend"),
            *("sleep_mode_offload_cudagraph", "enable_nccl_comm_suspend"),
            *("enable_cumem_allocator", "is_submodel_config", "spec_target_max_model_len"),
            # Checked separately.
            "multimodal_config",
        }
    ),
    "cache_config": frozenset(
        {
            # Sizes of the cache, and the search in it.
            *("gpu_memory_utilization", "kv_cache_memory_bytes", "num_gpu_blocks_override"),
            *("num_gpu_blocks", "num_cpu_blocks", "kv_cache_size_tokens"),
            *("kv_cache_max_concurrency", "effective_attention_block_size"),
            *("enable_prefix_caching", "prefix_caching_hash_algo", "prefix_match_unit"),
            *("prefix_cache_retention_interval", "hash_block_size"),
            *("cache_hit_alignment_tokens", "kv_offloading_size", "kv_offloading_backend"),
            # In the page's layout.
            *("block_size", "user_specified_block_size", "kv_cache_layout"),
            *("_block_size_resolved", "skip_page_size_padded", "is_attention_free"),
            # Parts of models that are refused.
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
    # The index of the device; its kind is in PlatformFacts.
    "device_config": frozenset({"device"}),
    "attention_config": frozenset(),
    "multimodal_config": frozenset(
        {
            # Limits, transport and caches of inputs.
            *("limit_per_prompt", "enable_mm_embeds", "mm_processor_cache_gb"),
            *("mm_processor_cache_type", "mm_hasher_algorithm", "mm_tensor_ipc"),
            *("mm_shm_cache_max_object_size_mb", "skip_mm_profiling", "mm_ipc_gpu_memory_gb"),
            *("mm_encoder_tp_mode", "interleave_mm_strings", "mm_encoder_only"),
            *("mm_encoder_fp8_scale_save_path", "mm_encoder_fp8_scale_save_margin"),
        }
    ),
}
# Fields of ParallelConfig that decide over a rank's part of the heads. The rest places processes,
# and affects rounding.
PARALLEL_FIELDS: Final = frozenset({"tensor_parallel_size"})
# Fields of LoRAConfig that decide over an adapter's KV. The rest limits their number.
LORA_FIELDS: Final = frozenset(
    {
        *("lora_dtype", "target_modules", "enable_tower_connector_lora"),
        *("enable_mixed_moe_lora_format", "enable_moe_shared_loras"),
    }
)


def config_factors(
    vllm_config: Any,  # noqa: ANN401  # a VllmConfig
    *,
    any_rank_count: bool = False,
) -> dict[str, bytes]:
    """Returns each setting that decides over KV as JSON, by its name.

    ``any_rank_count`` leaves out the number of tensor-parallel ranks, for pages free of it.
    Raises ``UnidentifiableModel`` for a setting without a stable value.
    """
    factors: dict[str, bytes] = {}
    for part in _names(vllm_config):
        if part not in PARTS_LEFT_OUT and part != "parallel_config":
            factors |= part_factors(part, getattr(vllm_config, part))
    multimodal = getattr(vllm_config.model_config, "multimodal_config", None)
    factors |= part_factors("multimodal_config", multimodal)
    scales = getattr(multimodal, "mm_encoder_fp8_scale_path", None)
    if scales:
        # Its name is among the factors; its content decides.
        try:
            factors["multimodal scales"] = sha256(Path(scales).read_bytes()).digest()
        except OSError as error:
            raise UnidentifiableModel(f"mm_encoder_fp8_scale_path: {error}") from error
    parallel = vllm_config.parallel_config
    for name in sorted(PARALLEL_FIELDS if not any_rank_count else ()):
        factors[f"parallel_config.{name}"] = canonical_json(getattr(parallel, name), name)
    return factors


def part_factors(part: str, value: Any) -> dict[str, bytes]:  # noqa: ANN401  # a part of a VllmConfig
    """Returns the fields of one part that count; all fields of an unknown part."""
    left_out = FIELDS_LEFT_OUT.get(part, frozenset())
    if value is None or not is_dataclass(value):
        return {part: canonical_json(value, part)}
    names = [name for name in _names(value) if name not in left_out]
    return {
        f"{part}.{name}": canonical_json(getattr(value, name, None), f"{part}.{name}")
        for name in names
    }


def adapter_facts(lora_config: Any) -> dict[str, str]:  # noqa: ANN401  # a LoRAConfig, or None
    """Returns the engine's settings that decide over its adapters' KV."""
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
