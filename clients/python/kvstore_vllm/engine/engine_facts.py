"""The facts that the connector reads of vLLM's configuration, and the engines that it refuses."""

from collections.abc import Sequence
from typing import Any, Final

from kvstore_vllm.blocks.block_geometry import BlockPiece, pieces_of
from kvstore_vllm.blocks.engine_layout import LayerFacts, LayoutFacts

# Class names of specifications whose blocks keep every token of a request.
WHOLE_SPECS: Final = frozenset({"FullAttentionSpec", "MLAAttentionSpec"})
RECOMPUTE: Final = "recompute"


class EngineFacts:
    """One engine's cache, as both halves see it.

    Raises ``ValueError``, with the setting to change, for an engine that the store cannot
    serve: one that fails requests after a failed load, one with several groups of layers, and
    one whose blocks do not keep all tokens (sliding window, recurrent state).
    """

    def __init__(self, vllm_config: Any, kv_cache_config: Any) -> None:  # noqa: ANN401  # vLLM's own
        transfer = vllm_config.kv_transfer_config
        if transfer.kv_load_failure_policy != RECOMPUTE:
            raise ValueError(
                'set "kv_load_failure_policy": "recompute" in the kv-transfer-config: with '
                f"{transfer.kv_load_failure_policy!r} a request fails if its load fails, and "
                "kvstore must never fail a request"
            )
        groups = kv_cache_config.kv_cache_groups
        if len(groups) != 1:
            raise ValueError(
                f"this model has {len(groups)} groups of layers with tables of blocks of their "
                'own, and KvstoreConnector takes one: set "kv_connector": '
                '"KvstoreOffloadingConnector" in the kv-transfer-config, or, without recurrent '
                "state (Mamba), --disable-hybrid-kv-cache-manager"
            )
        spec = groups[0].kv_cache_spec
        self._specs: dict[str, Any] = getattr(spec, "kv_cache_specs", None) or dict.fromkeys(
            groups[0].layer_names, spec
        )
        kinds = {type(each).__name__ for each in self._specs.values()}
        if kinds - WHOLE_SPECS or any(
            getattr(each, "non_causal", False) for each in self._specs.values()
        ):
            raise ValueError(
                f"this model's layers keep KV as {', '.join(sorted(kinds))}, and KvstoreConnector "
                f"takes {', '.join(sorted(WHOLE_SPECS))}, causal: pages whose every token stays"
            )
        self.engine_id = str(transfer.engine_id)
        self.page_tokens = int(spec.block_size)
        self.rank_count = int(vllm_config.parallel_config.world_size)
        self.tensor_parallel_size = int(vllm_config.parallel_config.tensor_parallel_size)
        self.pieces: Sequence[BlockPiece] = pieces_of(
            kv_cache_config.kv_cache_tensors, kv_cache_config.num_blocks
        )
        # vLLM then zeroes a step's new blocks before its forward.
        self.zeroes_blocks = bool(getattr(kv_cache_config, "needs_kv_cache_zeroing", False))
        self._layout_name = str(kv_cache_config.kv_cache_layout or "")

    @property
    def layout(self) -> LayoutFacts:
        """The layout of a page."""
        layers = tuple(
            LayerFacts(" ".join(piece.layers), piece.block_bytes, self._dtype(piece.layers[0]))
            for piece in self.pieces
        )
        return LayoutFacts(
            self.page_tokens,
            layers,
            layout_name=self._layout_name,
            tensor_parallel_size=self.tensor_parallel_size,
        )

    def _dtype(self, layer: str) -> str:
        spec = self._specs.get(layer)
        return str(getattr(spec, "dtype", "")).removeprefix("torch.")
