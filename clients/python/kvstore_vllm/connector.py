"""vLLM's ``KVConnectorBase_V1`` over the two halves; the only module with vLLM's own types."""

import logging
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorWorkerMetadata,
)
from vllm.v1.core.kv_cache_utils import resolve_kv_cache_block_sizes
from vllm.v1.metrics.cache_hit_source import CacheHitSource
from vllm.version import __version__ as vllm_version

from kvstore_client.engines.log import log_with
from kvstore_client.pages.match import DISK_TIER, REMOTE_TIER
from kvstore_vllm.blocks.swap_blocks import swap_blocks
from kvstore_vllm.connector_stats import ConnectorPromMetrics, ConnectorStats
from kvstore_vllm.engine.connector_settings import ConnectorSettings
from kvstore_vllm.engine.engine_facts import EngineFacts
from kvstore_vllm.rank.rank_role import RankRole
from kvstore_vllm.rank.weight_changes import WeightChanges
from kvstore_vllm.scheduler.scheduler_role import SchedulerRole
from kvstore_vllm.step_plan import StepPlan, WorkerReport
from kvstore_vllm.store_events import BlockSizes, StoreEvents
from kvstore_vllm.versions import VERSIONS

if TYPE_CHECKING:
    import torch
    from vllm.config import VllmConfig
    from vllm.distributed.kv_events import KVCacheEvent
    from vllm.forward_context import ForwardContext
    from vllm.v1.attention.backend import AttentionMetadata
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks, KVCacheManager
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request

VERSIONS.require(vllm_version)


@dataclass
class PlanMetadata(KVConnectorMetadata):
    """A step's plan, on its way to the ranks."""

    plan: StepPlan


@dataclass
class ReportMetadata(KVConnectorWorkerMetadata):
    """Results of transfers on their way back, summed up over the ranks."""

    report: WorkerReport = field(default_factory=WorkerReport)

    def aggregate(self, other: KVConnectorWorkerMetadata) -> "ReportMetadata":
        """Adds another rank's results."""
        assert isinstance(other, ReportMetadata)
        self.report.add(other.report)
        return self


class KvstoreConnector(KVConnectorBase_V1):
    """A vLLM connector that loads pages which any engine of this host computed.

    vLLM makes one instance in the scheduler and one at each rank. Raises ``ValueError`` if the
    store cannot serve the engine; the message names the setting to change. A store that is
    absent, slow, stopped or restarted is a miss, never an error.
    """

    _cache_hit_source = CacheHitSource.HOST

    def __init__(
        self, vllm_config: "VllmConfig", role: KVConnectorRole, kv_cache_config: "KVCacheConfig"
    ) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        log_with(logging.getLogger("vllm"), "kvstore_vllm")
        settings = _settings(vllm_config)
        facts = EngineFacts(vllm_config, kv_cache_config)
        self._scheduler: SchedulerRole | None = None
        self._rank: RankRole | None = None
        if role is KVConnectorRole.SCHEDULER:
            events = _events(vllm_config, kv_cache_config, facts.page_tokens)
            self._scheduler = SchedulerRole(vllm_config, settings, facts, events)
        else:
            weights = WeightChanges()
            weights.watch(vllm_config)
            self._rank = RankRole(vllm_config, settings, facts, swap_blocks, weights)

    @classmethod
    def get_required_kvcache_layout(cls, vllm_config: "VllmConfig") -> str | None:
        """Returns the KV cache's layout that ``kv_cache_layout`` asks for; None: any.

        vLLM uses another one, with a warning, if the attention does not support it.
        """
        return _settings(vllm_config).wanted_layout(vllm_config.device_config.device_type)

    @property
    def requires_kv_delivery(self) -> bool:
        """Returns False: a dropped save is only a later miss."""
        return False

    # Methods at a rank.

    def register_kv_caches(self, kv_caches: "dict[str, torch.Tensor]") -> None:
        """Stores the memory that holds the blocks."""
        if self._rank is not None:
            self._rank.register(kv_caches)

    def handle_preemptions(self, kv_connector_metadata: KVConnectorMetadata) -> None:
        """Prepares a step: runs before its forward, and before blocks are overwritten."""
        assert isinstance(kv_connector_metadata, PlanMetadata)
        if self._rank is not None:
            self._rank.prepare(kv_connector_metadata.plan)

    def start_load_kv(self, forward_context: "ForwardContext", **kwargs: Any) -> None:  # noqa: ANN401
        """Begins the plan's other loads; those that are part of the step are complete on return.

        If no load is part of the step, vLLM calls this once it launched the forward; on a CPU
        that is the forward's end.
        """
        del forward_context, kwargs
        if self._rank is not None:
            self._rank.load(self._plan())

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Does nothing: no load works by layer."""

    def save_kv_layer(
        self,
        layer_name: str,
        kv_layer: "torch.Tensor",
        attn_metadata: "AttentionMetadata",
        **kwargs: Any,  # noqa: ANN401
    ) -> None:
        """Does nothing: no save works by layer, because a CUDA graph would skip it."""

    def wait_for_save(self) -> None:
        """Begins to copy the blocks that the plan saves; on a CPU the copies are complete."""
        if self._rank is not None:
            self._rank.save(self._plan())

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        """Returns the released requests, and the requests whose loads ended."""
        del finished_req_ids
        return (None, None) if self._rank is None else self._rank.take_finished()

    def get_block_ids_with_load_errors(self) -> set[int]:
        """Returns the blocks whose loads failed."""
        return set() if self._rank is None else self._rank.take_failed_blocks()

    def build_connector_worker_meta(self) -> ReportMetadata | None:
        """Returns the results since the last step."""
        report = None if self._rank is None else self._rank.take_report()
        return ReportMetadata(report) if report else None

    # Methods in the scheduler.

    def bind_kv_cache_manager(self, kv_cache_manager: "KVCacheManager") -> None:
        """Stores vLLM's block manager, which knows the blocks of each request."""
        super().bind_kv_cache_manager(kv_cache_manager)
        if self._scheduler is not None:
            self._scheduler.blocks_of = lambda request_id: kv_cache_manager.get_block_ids(
                request_id
            )[0]

    def on_new_request(self, request: "Request") -> None:
        """Begins a request's lookup."""
        if self._scheduler is not None:
            self._scheduler.arrived(request)

    def get_num_new_matched_tokens(
        self, request: "Request", num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        """Returns the number of loadable tokens and whether they load beside steps.

        The number is None while the lookup is under way.
        """
        if self._scheduler is None:
            return 0, False
        return self._scheduler.matched_tokens(request.request_id, num_computed_tokens)

    def get_external_cache_hit_sources(
        self, request: "Request", num_external_tokens: int
    ) -> dict[CacheHitSource, int]:
        """Returns the tokens of a planned load by where they came from: memory, disk or remote."""
        if self._scheduler is None:
            return {}
        loaded_from = self._scheduler.planner.loaded_from
        remote = min(loaded_from(request.request_id, REMOTE_TIER), num_external_tokens)
        disk = min(loaded_from(request.request_id, DISK_TIER), num_external_tokens - remote)
        sources = {
            CacheHitSource.HOST: num_external_tokens - disk - remote,
            CacheHitSource.DISK: disk,
            # vLLM's value for a remote store.
            CacheHitSource.EXTERNAL_UNSPECIFIED: remote,
        }
        return {source: count for source, count in sources.items() if count}

    def update_state_after_alloc(
        self, request: "Request", blocks: "KVCacheBlocks", num_external_tokens: int
    ) -> None:
        """Plans the load of the offered tokens into the request's blocks."""
        if self._scheduler is not None:
            block_ids = blocks.get_block_ids()[0]
            self._scheduler.planner.allocated(request.request_id, block_ids, num_external_tokens)

    def build_connector_meta(self, scheduler_output: "SchedulerOutput") -> PlanMetadata:
        """Returns the step's plan for the ranks."""
        assert self._scheduler is not None
        preempted = scheduler_output.preempted_req_ids or ()
        finished = scheduler_output.finished_req_ids
        return PlanMetadata(
            self._scheduler.plan(scheduler_output.num_scheduled_tokens, preempted, finished)
        )

    def update_connector_output(self, connector_output: "KVConnectorOutput") -> None:
        """Takes the ranks' results."""
        assert self._scheduler is not None
        meta = connector_output.kv_connector_worker_meta
        report = meta.report if isinstance(meta, ReportMetadata) else WorkerReport()
        wrong = self._scheduler.reported(report, connector_output.invalid_block_ids)
        if wrong:
            # vLLM computes only the blocks of running requests again.
            assert self._kv_cache_manager is not None
            self._kv_cache_manager.evict_blocks(wrong)

    def request_finished(
        self, request: "Request", block_ids: list[int]
    ) -> tuple[bool, dict[str, Any] | None]:
        """Returns whether the request's blocks are still to be copied."""
        if self._scheduler is None:
            return False, None
        return self._scheduler.planner.finished(request.request_id, block_ids), None

    def has_pending_block_frees(self) -> bool:
        """Returns whether blocks of ended requests come free soon, so vLLM need not preempt."""
        return self._scheduler is not None and self._scheduler.planner.holds_blocks

    def has_pending_push_work(self) -> bool:
        """Returns whether an idle engine has to go on stepping.

        It releases what it holds, and vLLM takes events in steps.
        """
        scheduler = self._scheduler
        return scheduler is not None and (
            scheduler.planner.awaits_answers or scheduler.events.are_waiting
        )

    def reset_cache(self) -> bool | None:
        """Stops matching everything computed until now, for example after a change of weights."""
        return None if self._scheduler is None else self._scheduler.reset()

    def shutdown(self) -> None:
        """Releases everything."""
        if self._scheduler is not None:
            self._scheduler.close()
        if self._rank is not None:
            self._rank.close()

    # Events, counts and metrics.

    def take_events(self) -> "Iterable[KVCacheEvent]":
        """Returns the events of the store's pages since the last call, if events are on."""
        return () if self._scheduler is None else self._scheduler.events.take()

    def get_kv_connector_stats(self) -> ConnectorStats | None:
        """Returns the counts since the last call."""
        side = self._rank if self._scheduler is None else self._scheduler.planner
        return None if side is None else ConnectorStats.taken(side.counts)

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> ConnectorStats:
        """Returns counts that came over the wire."""
        return ConnectorStats(data=data or {})

    @classmethod
    def build_prom_metrics(
        cls,
        vllm_config: "VllmConfig",
        metric_types: dict[Any, Any],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> ConnectorPromMetrics:
        """Returns the metrics of an API server's engines."""
        return ConnectorPromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    def _plan(self) -> StepPlan:
        metadata = self._get_connector_metadata()
        assert isinstance(metadata, PlanMetadata)
        return metadata.plan


def _settings(vllm_config: "VllmConfig") -> ConnectorSettings:
    transfer = vllm_config.kv_transfer_config
    return ConnectorSettings.read((transfer and transfer.kv_connector_extra_config) or {})


def _events(
    vllm_config: "VllmConfig", kv_cache_config: "KVCacheConfig", page_tokens: int
) -> StoreEvents:
    _, hash_tokens = resolve_kv_cache_block_sizes(kv_cache_config, vllm_config)
    [group] = kv_cache_config.kv_cache_groups
    sizes = BlockSizes(hash_tokens, page_tokens, page_tokens)
    return StoreEvents(vllm_config, group, 0, sizes)


# vLLM's MultiConnector finds the class of each connector's counts by its registered name alone.
with suppress(ValueError):  # It is registered already.
    KVConnectorFactory.register_connector(
        KvstoreConnector.__name__, __name__, KvstoreConnector.__name__
    )
