"""vLLM's OffloadingSpec over a store: makes the manager, and each rank's worker."""

from collections import Counter
from math import ceil
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.offloading.scheduler import (
    get_sliding_window_size_in_chunks,
)
from vllm.v1.kv_cache_interface import MambaSpec, iter_layer_specs
from vllm.v1.kv_offload.base import (
    CanonicalKVCaches,
    OffloadingCounterMetadata,
    OffloadingManager,
    OffloadingMetricMetadata,
    OffloadingSpec,
    OffloadingWorker,
)
from vllm.v1.kv_offload.config import OffloadingConfig, OffloadingGroupConfig

from kvstore_client import AddressRange, ContiguousMemory
from kvstore_client.engines.counters import METRICS
from kvstore_client.engines.store_access import StoreAccess
from kvstore_vllm.engine.connector_settings import PlannerSettings
from kvstore_vllm.engine.store_access import ENGINES_HERE, lease_name
from kvstore_vllm.identity.adapters import AdapterDigests
from kvstore_vllm.identity.config_factors import adapter_facts, part_factors
from kvstore_vllm.identity.model import engine_salt, model_identity
from kvstore_vllm.offload.canonical_layout import CanonicalLayout, page_sizes
from kvstore_vllm.offload.cpu_worker import HostCopyWorker
from kvstore_vllm.offload.handover import HANDOVERS, Handover
from kvstore_vllm.offload.held_copies import HeldCopies
from kvstore_vllm.offload.key_groups import EngineGroup, KeyGroups
from kvstore_vllm.offload.offload_manager import KvstoreOffloadingManager
from kvstore_vllm.offload.page_row import PageRow
from kvstore_vllm.offload.region import StoreRegion
from kvstore_vllm.scheduler.store_attachment import StoreAttachment
from kvstore_vllm.store_events import BlockSizes, StoreEvents

# Steps whose blocks fit into the slots that are reserved ahead.
STEPS_AHEAD = 2


class KvstoreOffloadingSpec(OffloadingSpec):
    """vLLM's way to the store, for ``KvstoreOffloadingConnector``.

    vLLM makes one in the scheduler and one at each rank. Raises ``ValueError`` for an engine that
    the store cannot serve; the message names the setting to change.
    """

    @classmethod
    def build_metric_definitions(
        cls, extra_config: dict[str, Any]
    ) -> dict[str, OffloadingMetricMetadata]:
        """Returns the counters of the store's connectors."""
        del extra_config
        return {
            name: OffloadingCounterMetadata(meaning, (label,) if label else ())
            for name, (meaning, label) in METRICS.items()
        }

    def __init__(self, config: OffloadingConfig) -> None:
        super().__init__(config)
        self._handed = HANDOVERS.take(config.engine_id)
        self._settings = self._handed.settings.connector
        self.offload_prompt_only = not self._settings.save_output
        self.replicated_layout = config.replicated_layout
        self._groups = KeyGroups.of(
            [
                _group_of(each, self._handed.kv_cache_config, self.blocks_per_chunk)
                for each in config.groups
            ]
        )
        if len(config.groups) > 1 and self.blocks_per_chunk > 1:
            raise ValueError(
                f"this model has {len(config.groups)} groups of layers with tables of blocks of "
                "their own, and a page is one block then: leave out block_size and "
                "blocks_per_chunk in kv_connector_extra_config"
            )
        self._canonical: CanonicalLayout | None = None
        if config.canonical_layout:
            self._canonical = CanonicalLayout(
                config, self._handed.vllm_config, self._handed.kv_cache_config
            )
        self.row = _row_of(config, self._handed, self._groups, self._canonical)

    def get_manager(self) -> OffloadingManager:
        """Returns the manager, which attaches to the store in the background."""
        config, settings = self._handed.vllm_config, self._settings
        layout = self.row.layout
        identity = model_identity(
            config, settings, layout=layout, any_rank_count=self._canonical is not None
        )
        access = StoreAccess(
            settings.runtime_dir,
            identity,
            layout,
            name=lease_name(identity.display_name, self.config.engine_id),
            call_timeout=settings.lookup_timeout,
            device=ENGINES_HERE.device_of(self.config.engine_id),
            contiguous_memory=ContiguousMemory(),
        )
        counts: Counter[str] = Counter()
        rank_count = self.config.parallel.world_size
        step_tokens = config.scheduler_config.max_num_batched_tokens
        return KvstoreOffloadingManager(
            PlannerSettings(
                page_tokens=self.row.page_tokens,
                rank_count=rank_count,
                lookup_timeout=settings.lookup_timeout,
                scheduling_wait=settings.scheduling_wait,
                save_output=settings.save_output,
            ),
            StoreAttachment(access, self.config.engine_id, rank_count, counts),
            engine_salt(settings),
            AdapterDigests(adapter_facts(config.lora_config)),
            counts,
            groups=self._groups,
            most_spare=STEPS_AHEAD
            * ceil(step_tokens / self.row.page_tokens)
            * len(self.config.groups),
            events=self._events(),
        )

    def _events(self) -> StoreEvents:
        """Returns what makes events of the path's pages."""
        [number] = [each for each, of_store in self._groups.numbers.items() if not of_store]
        [group] = [each for each in self.config.groups if each.group_id == number]
        return StoreEvents(
            self._handed.vllm_config,
            self._handed.kv_cache_config.kv_cache_groups[number],
            number,
            BlockSizes(
                self.config.cache.tokens_per_hash, group.tokens_per_block, self.row.page_tokens
            ),
        )

    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        """Returns the worker of one rank. Raises ``ValueError`` if its blocks do not fit a page."""
        canonical = self._canonical is not None
        sizes = [each.page_size_bytes for each in kv_caches.tensors]
        found = sum(page_sizes(kv_caches) if canonical else sizes) * self.blocks_per_chunk
        if found > self.row.rank_bytes:
            raise ValueError(
                f"a block of this rank has {found} bytes, and a page has {self.row.rank_bytes}"
            )
        memory = self._handed.memory
        assert memory is not None
        rank = 0 if self.replicated_layout else self.config.parallel.rank
        begin = self.row.begin(rank)
        on_host = kv_caches.tensors[0].tensor.device.type == "cpu"

        def make(addresses: AddressRange) -> OffloadingWorker:
            region = StoreRegion(addresses, rank, begin)
            if on_host:
                return HostCopyWorker(kv_caches, self.blocks_per_chunk, region, canonical=canonical)
            return _device_worker(kv_caches, self.blocks_per_chunk, region, canonical=canonical)

        faults = self._settings.fault_load_fraction
        return HeldCopies(
            memory,
            make,
            self._handed.weights,
            blocks_per_page=self.blocks_per_chunk,
            fault_fraction=faults,
        )


def _device_worker(
    kv_caches: CanonicalKVCaches, blocks_per_chunk: int, region: StoreRegion, *, canonical: bool
) -> OffloadingWorker:
    # Only a build for a device has what it imports.
    from vllm.v1.kv_offload.cpu.gpu_worker import CPUOffloadingWorker  # noqa: PLC0415

    worker: OffloadingWorker = CPUOffloadingWorker(
        kv_caches=kv_caches,
        blocks_per_chunk=blocks_per_chunk,
        num_cpu_chunks=0,
        mmap_region=region,
        canonical_layout=canonical,
    )
    return worker


def _group_of(
    group: OffloadingGroupConfig,
    kv_cache_config: Any,  # noqa: ANN401  # vLLM's
    blocks_per_chunk: int,
) -> EngineGroup:
    of_vllm = kv_cache_config.kv_cache_groups[group.group_id]
    key_tokens = group.tokens_per_block * blocks_per_chunk
    spec = of_vllm.kv_cache_spec
    return EngineGroup(
        group.group_id,
        key_tokens,
        get_sliding_window_size_in_chunks(spec, key_tokens),
        is_state=isinstance(spec, MambaSpec),
        drafts=bool(of_vllm.is_eagle_group),
    )


def _row_of(
    config: OffloadingConfig,
    handed: Handover,
    groups: KeyGroups,
    canonical: CanonicalLayout | None,
) -> PageRow:
    blocks_per_chunk = config.cache.blocks_per_chunk
    rank_bytes = config.worker_kv_bytes_per_block * blocks_per_chunk
    facts = [str(config.kv_cache_layout)]
    facts += [str(config.parallel.tp_size)] if canonical is None else canonical.facts
    facts += [str(blocks_per_chunk), repr(sorted(groups.numbers.items())), repr(groups.windows)]
    for group in config.groups:
        spec = handed.kv_cache_config.kv_cache_groups[group.group_id].kv_cache_spec
        specs = iter_layer_specs(spec)
        whole = specs if canonical is None else map(canonical.whole, specs)
        facts += [str(group.tokens_per_block), *group.layer_names, *map(repr, whole)]
        if isinstance(spec, MambaSpec):
            mamba = part_factors("mamba_config", handed.vllm_config.mamba_config)
            facts += [f"{name} {value!r}" for name, value in mamba.items()]
    if canonical is not None:
        return PageRow(groups.page_tokens, rank_bytes * canonical.shards, 1, facts)
    copies = 1 if config.replicated_layout else config.parallel.world_size
    return PageRow(groups.page_tokens, rank_bytes, copies, facts)
