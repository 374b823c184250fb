"""The SGLang settings that decide over KV.

A field counts unless this module lists it, or its namespace, as one that does not. A field that a
new version adds keeps engines apart until somebody has checked it. Some settings decide by
rounding alone: graphs, batches, the overlap of work. One engine's own KV differs by as much from
request to request, so those do not count.
"""

from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from kvstore_client.engines.canonical import UnidentifiableModel, canonical_json

# Namespaces of ServerArgs without influence on KV.
NAMESPACES_LEFT_OUT: Final = frozenset(
    {
        # Queueing, display and watching of requests.
        *("serving", "observability", "schedule", "disagg"),
        # The cache itself: the page's layout has what is left of it in a page.
        "memory",
        # Its adapters are in the extra key of requests.
        "lora",
        # Images are not cached.
        "mm",
        # The kind of device is in the platform.
        "device",
        # By rounding alone.
        *("exec.graph", "exec.comm", "exec.overlap"),
        # The place of weights.
        "exec.offload",
        # Drafts with KV of their own are refused.
        "spec",
        # The rank and the number of ranks are factors of their own.
        "parallel",
    }
)
# Fields that count, of namespaces that are left out.
COUNTED_ALL_THE_SAME: Final = frozenset(
    {
        *("disagg.encoder_only", "disagg.language_only", "disagg.language_model_only"),
        "exec.comm.enable_quant_communications",
        "parallel.enable_kv_cache_sharding",
    }
)
# Namespace -> its fields without influence on KV.
FIELDS_LEFT_OUT: Final[Mapping[str, frozenset[str]]] = {
    "model": frozenset(
        {
            # Names of the weights, which are digested themselves.
            *("model_path", "revision", "model_checksum", "download_dir"),
            # In the model's own configuration.
            "model_config_parser",
            # Ways to load the weights.
            *("startup_weight_load_mode", "weight_loader_disable_mmap"),
            *("weight_loader_prefetch_checkpoints", "weight_loader_prefetch_num_threads"),
            *("weight_loader_drop_cache_after_load", "delete_ckpt_after_loading"),
            *("remote_instance_weight_loader_seed_instance_ip", "engine_info_bootstrap_port"),
            "remote_instance_weight_loader_seed_instance_service_port",
            "remote_instance_weight_loader_send_weights_group_ports",
            "remote_instance_weight_loader_start_seed_via_transfer_engine",
            *("weight_cache_mode", "weight_cache_socket", "weight_cache_timeout"),
            "checkpoint_engine_wait_weights_before_ready",
            # Files that are written.
            *("modelopt_checkpoint_save_path", "modelopt_export_path"),
            # Of a draft model, which is refused.
            "decrypted_draft_config_file",
        }
    ),
    "exec.features": frozenset(
        {
            # From logits to tokens, and more outputs.
            *("enable_fp32_lm_head", "enable_custom_logit_processor", "sampling_mask_max_tokens"),
            *("enable_watermark", "watermark_config", "watermark_key", "watermark_key_b"),
            *("watermark_context_window", "watermark_mixing_probability"),
            *("watermark_max_probability", "watermark_default_enabled", "watermark_enforce_all"),
            *("enable_return_hidden_states", "return_hidden_states_mode"),
            *("enable_return_aux_hidden_states", "aux_hidden_state_capture"),
            *("return_aux_hidden_state_layer_ids", "enable_return_routed_experts"),
            *("enable_return_indexer_topk", "disable_outlines_disk_cache"),
            # The place of weights.
            *("enable_memory_saver", "enable_weights_cpu_backup"),
            "enable_draft_weights_cpu_backup",
        }
    ),
    "exec.mamba": frozenset(
        {
            # How many states are kept, and after which tokens.
            *("mamba_max_states_per_path", "mamba_track_interval", "uses_mamba_radix_cache"),
            "mamba_radix_cache_strategy",
        }
    ),
    "exec.kernel": frozenset(
        {
            *("sampling_backend", "grammar_backend", "disable_flashinfer_autotune"),
            *("flashinfer_autotune_skip_ops", "triton_attention_num_kv_splits"),
            "triton_attention_split_tile_size",
        }
    ),
    "exec.moe": frozenset(
        {
            # The place of experts.
            *("ep_num_redundant_experts", "ep_dispatch_algorithm", "init_expert_location"),
            *("enable_eplb", "eplb_algorithm", "eplb_rebalance_num_iterations"),
            *("eplb_rebalance_layers_per_chunk", "eplb_min_rebalancing_utilization_threshold"),
            *("expert_distribution_recorder_mode", "expert_distribution_recorder_buffer_size"),
            *("expert_balancedness_report_mode", "elastic_ep_backend", "mooncake_ib_device"),
            *("enable_elastic_expert_backup", "enable_waterfill", "ep_join_mode"),
            *("elastic_ep_scale_timeout", "enable_paged_experts", "paged_experts_num_resident"),
        }
    ),
}
# Fields with the name of a file whose content counts.
FILES: Final = ("model.quantization_param_path", "model.decrypted_config_file")


def config_factors(settings: Mapping[str, object], hf_config: Any) -> dict[str, bytes]:  # noqa: ANN401  # a model's configuration
    """Returns each setting that decides over KV as JSON, by its name.

    ``settings`` are SGLang's resolved ones, by namespace and field, such as ``model.dtype``.
    Raises ``UnidentifiableModel`` for a setting without a stable value.
    """
    factors = {
        name: canonical_json(value, name) for name, value in settings.items() if counts(name)
    }
    for name in FILES:
        if path := settings.get(name):
            try:
                factors[name] = sha256(Path(str(path)).read_bytes()).digest()
            except OSError as error:
                raise UnidentifiableModel(f"{name}: {error}") from error
    factors["hf_config"] = canonical_json(hf_config, "hf_config")
    return factors


def counts(name: str) -> bool:
    """Returns whether a setting decides over KV."""
    namespace, _, field = name.rpartition(".")
    if name in COUNTED_ALL_THE_SAME:
        return True
    if namespace in NAMESPACES_LEFT_OUT:
        return False
    return field not in FIELDS_LEFT_OUT.get(namespace, frozenset())
