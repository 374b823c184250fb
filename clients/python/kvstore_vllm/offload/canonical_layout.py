"""vLLM's canonical layout: pages that do not depend on the number of tensor-parallel ranks.

A layer's page has all heads of the model in their order. Each rank copies its own heads out of it
and into it, as vLLM's mapping of the layer says (``derive_canonical_mappings``).
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.offloading.canonical_mapping import (
    canonical_format_id,
)
from vllm.v1.kv_cache_interface import KVCacheSpec, MLAAttentionSpec, iter_layer_specs
from vllm.v1.kv_cache_layout import KVCacheLayout
from vllm.v1.kv_offload.base import CanonicalKVCacheRef, CanonicalKVCaches
from vllm.v1.kv_offload.config import OffloadingConfig

SETTING = "canonical_layout"


class CanonicalLayout:
    """The canonical layout of one engine's pages.

    Raises ``ValueError``, with the reason, for an engine without such a layout in vLLM. It also
    refuses more ranks than KV heads: vLLM then takes one number of heads for all layers, which
    is wrong for models whose layers have different numbers.
    """

    def __init__(self, config: OffloadingConfig, vllm_config: Any, kv_cache_config: Any) -> None:  # noqa: ANN401  # vLLM's
        self._layout_name = str(config.kv_cache_layout)
        _require_layers_first(self._layout_name)
        if not config.parallel.is_parallelism_agnostic:
            raise _refused(
                "vLLM has no such layout for this engine: it needs layers of attention alone, full "
                "or with a sliding window, without scales for each token and head, and no other "
                "parallelism than tensor_parallel_size"
            )
        specs = [
            spec
            for group in config.groups
            for spec in iter_layer_specs(
                kv_cache_config.kv_cache_groups[group.group_id].kv_cache_spec
            )
        ]
        compressed = {isinstance(spec, MLAAttentionSpec) for spec in specs}
        if len(compressed) > 1:
            raise _refused("some layers have heads (MHA, GQA) and others one latent for all (MLA)")
        self._heads = 0 if True in compressed else vllm_config.model_config.get_total_num_kv_heads()
        ranks = config.parallel.tp_size
        if self._heads and ranks > self._heads:
            raise _refused(
                f"each rank needs heads of its own, and the model has {self._heads} KV heads: set "
                f"tensor_parallel_size to at most {self._heads}, not {ranks}"
            )
        _require_same_ranks(vllm_config, ranks)
        # Parts of a page that ranks write: with MLA all ranks have the same bytes.
        self.shards = ranks if self._heads else 1
        self._tensors = kv_cache_config.kv_cache_tensors

    @property
    def facts(self) -> Iterator[str]:
        """The facts that engines of all numbers of ranks share, besides their layers."""
        yield f"canonical {canonical_format_id(self._layout_name)}"
        # Layers of different groups may take turns in the same bytes of a page.
        offsets = sorted({tensor.offset for tensor in self._tensors})
        for tensor in self._tensors:
            yield f"{offsets.index(tensor.offset)} {' '.join(tensor.layers)}"

    def whole(self, spec: KVCacheSpec) -> KVCacheSpec:
        """Returns a layer's cache as an engine of one rank has it."""
        if not self._heads:
            return spec
        whole: KVCacheSpec = replace(spec, num_kv_heads=self._heads)
        return whole


def page_sizes(kv_caches: CanonicalKVCaches) -> list[int]:
    """Returns the bytes of a block in the canonical layout, for each tensor.

    Raises ``ValueError`` unless vLLM certified each layer's layout for every number of ranks.
    """
    sizes = [0] * len(kv_caches.tensors)
    for ref in refs_of(kv_caches):
        if ref.mapping is None or not ref.mapping.parallelism_agnostic:
            raise _refused(
                "the attention keeps heads and tokens of a block in an order that vLLM does not "
                "know, or splits blocks: set another kv_cache_layout, such as LBHNC"
            )
        size = ref.mapping.canonical_page_size_bytes
        sizes[ref.tensor_idx] = max(sizes[ref.tensor_idx], size)
    return sizes


def refs_of(kv_caches: CanonicalKVCaches) -> Iterator[CanonicalKVCacheRef]:
    """Yields each layer of each group."""
    for group in kv_caches.group_data_refs:
        yield from group


def _require_layers_first(layout_name: str) -> None:
    layout = KVCacheLayout.__members__.get(layout_name)
    if layout is None or layout.is_block_outermost:
        raise _refused(
            f"the KV cache has the layout {layout_name}, in which all layers of a block lie "
            'together: set "kv_cache_layout": "LBHNC" in kv_connector_extra_config, or another '
            "one whose layers come first"
        )


def _require_same_ranks(vllm_config: Any, ranks: int) -> None:  # noqa: ANN401  # a VllmConfig
    """Raises if a draft model has other ranks, whose heads vLLM would place as the model's."""
    speculative = vllm_config.speculative_config
    draft = speculative and speculative.draft_parallel_config
    if draft and draft.tensor_parallel_size != ranks:
        raise _refused(
            f"the draft model has a tensor_parallel_size of {draft.tensor_parallel_size}, and the "
            f"model {ranks}: set draft_tensor_parallel_size to {ranks}"
        )


def _refused(reason: str) -> ValueError:
    return ValueError(f"{SETTING} in kv_connector_extra_config cannot be used: {reason}")
