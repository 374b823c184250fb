"""vLLM's OffloadingConnector with a store in the place of memory of its own."""

import logging
from collections.abc import Iterable
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorTransferResults,
)
from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import OffloadingConnector
from vllm.version import __version__ as vllm_version

from kvstore_client import ContiguousMemory
from kvstore_client.engines.log import log_with
from kvstore_vllm.connector_stats import forget_metrics
from kvstore_vllm.engine.engine_facts import RECOMPUTE
from kvstore_vllm.offload.handover import HANDOVERS, Handover
from kvstore_vllm.offload.held_copies import HeldCopies
from kvstore_vllm.offload.messages import OffloadReport, OffloadStep
from kvstore_vllm.offload.offload_manager import KvstoreOffloadingManager
from kvstore_vllm.offload.offload_settings import OffloadSettings
from kvstore_vllm.offload.step_loads import dependent_blocks, hidden_loads, unhashed
from kvstore_vllm.rank.rank_memory import RankMemory, selected_gpu
from kvstore_vllm.rank.weight_changes import WeightChanges
from kvstore_vllm.versions import VERSIONS

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.distributed.kv_events import KVCacheEvent
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request

VERSIONS.require(vllm_version)

_logger = logging.getLogger(__name__)

SELF_DESCRIBING = "self_describing_kv_events"
SPEC = {"spec_name": "KvstoreOffloadingSpec", "spec_module_path": "kvstore_vllm"}


class KvstoreOffloadingConnector(OffloadingConnector):
    """vLLM's connector, whose copies go straight between blocks and the store's memory.

    vLLM makes one instance in the scheduler and one at each rank. Raises ``ValueError`` if the
    store cannot serve the engine; the message names the setting to change. A store that is
    absent, slow, stopped or restarted is a miss, never an error.
    """

    def __init__(
        self, vllm_config: "VllmConfig", role: KVConnectorRole, kv_cache_config: "KVCacheConfig"
    ) -> None:
        log_with(logging.getLogger("vllm"), "kvstore_vllm")
        transfer = vllm_config.kv_transfer_config
        if transfer.kv_load_failure_policy != RECOMPUTE:
            raise ValueError(
                'set "kv_load_failure_policy": "recompute" in the kv-transfer-config: with '
                f"{transfer.kv_load_failure_policy!r} a request fails if its load fails"
            )
        settings = OffloadSettings.read(transfer.kv_connector_extra_config)
        engine_id = str(transfer.engine_id)
        self._memory: RankMemory | None = None
        self._weights = WeightChanges()
        if role is KVConnectorRole.WORKER:
            shared = settings.connector
            self._memory = RankMemory(
                shared.runtime_dir,
                engine_id,
                shared.lookup_timeout,
                ContiguousMemory(),
                device=selected_gpu(vllm_config),
            )
            self._weights.watch(vllm_config)
        handover = Handover(vllm_config, kv_cache_config, settings, self._memory, self._weights)
        HANDOVERS.put(engine_id, handover)
        _name_spec(vllm_config)
        super().__init__(vllm_config, role, kv_cache_config)
        self._loads_in_step = settings.loads_in_step(
            vllm_config.device_config.device_type, len(kv_cache_config.kv_cache_groups)
        )
        self._failed_blocks: set[int] = set()
        self._rank = int(vllm_config.parallel_config.rank)
        self._reset_count = self._weight_changes = 0
        self._report = OffloadReport()

    @classmethod
    def get_required_kvcache_layout(cls, vllm_config: "VllmConfig") -> str | None:
        """Returns the layout that the operator asks for, else that of vLLM's connector."""
        extra = vllm_config.kv_transfer_config.kv_connector_extra_config
        wanted = OffloadSettings.read(extra).kv_cache_layout
        return wanted or super().get_required_kvcache_layout(vllm_config)

    @classmethod
    def build_prom_metrics(cls, vllm_config: "VllmConfig", *arguments: Any) -> Any:  # noqa: ANN401
        """Returns the metrics of an API server's engines."""
        forget_metrics()
        _name_spec(vllm_config)
        return super().build_prom_metrics(vllm_config, *arguments)

    # Methods in the scheduler.

    @property
    def _manager(self) -> KvstoreOffloadingManager:
        manager = self.scheduler.manager
        assert isinstance(manager, KvstoreOffloadingManager)
        return manager

    def on_new_request(self, request: "Request") -> None:
        """Begins a request's lookup."""
        self._manager.arrived(request)
        super().on_new_request(request)

    def get_num_new_matched_tokens(
        self, request: "Request", num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        """Returns the number of loadable tokens, and whether they load beside steps.

        The number is None while the lookup is under way.
        """
        if self._weight_changes and num_computed_tokens:
            # vLLM's own prefix cache may have them from before the change.
            self._manager.store_nothing(request.request_id)
        if not self._manager.is_known(request.request_id):
            return None, False
        found: int | None
        found, beside = super().get_num_new_matched_tokens(request, num_computed_tokens)
        return found, bool(beside) and not self._loads_in_step

    def _max_loadable_tokens(self, request: "Request", num_computed_tokens: int) -> int | None:
        """Returns how many tokens more may be loaded; None if vLLM sets no bound.

        A load within a step leaves the step one token to compute. vLLM's method, which its own
        :meth:`get_num_new_matched_tokens` calls.
        """
        bound: int | None = super()._max_loadable_tokens(request, num_computed_tokens)
        if not self._loads_in_step:
            return bound
        [group] = self.scheduler.config.kv_group_configs
        most = int(request.num_tokens) - 1
        left: int = max(most - most % group.tokens_per_chunk - num_computed_tokens, 0)
        return left if bound is None else min(left, bound)

    def update_state_after_alloc(
        self, request: "Request", blocks: "KVCacheBlocks", num_external_tokens: int
    ) -> None:
        """Plans the load, or releases the pages if there is none."""
        if self._loads_in_step:
            # They are in vLLM's prefix cache already, and its connector would load none of them.
            blocks = unhashed(blocks)
        super().update_state_after_alloc(request, blocks, num_external_tokens)
        self._manager.allocated(request.request_id)

    def build_connector_meta(self, scheduler_output: "SchedulerOutput") -> KVConnectorMetadata:
        """Returns the step's copies for the ranks."""
        scheduled = scheduler_output.num_scheduled_tokens
        idle = not scheduled
        manager = self._manager
        manager.begin_step(idle=idle)
        with hidden_loads(self.scheduler) if self._loads_in_step else nullcontext():
            meta = super().build_connector_meta(scheduler_output)
        manager.publish_copied()
        loads_within = bool(meta.load_jobs) and self._loads_in_step
        manager.speed.scheduled(
            scheduled, scheduler_output.finished_req_ids, measured=not loads_within
        )
        return OffloadStep(
            meta.load_jobs,
            meta.store_jobs,
            meta.jobs_to_flush,
            join=manager.join(),
            reset_count=manager.reset_count,
            idle=idle,
            weight_changes=self._weight_changes,
        )

    def update_connector_output(self, connector_output: "KVConnectorOutput") -> None:
        """Takes the ranks' results."""
        report = connector_output.kv_connector_worker_meta
        if not isinstance(report, OffloadReport):
            report = OffloadReport()
        self._manager.reported(report, connector_output.failed_recving | report.failed_loads)
        if invalid := connector_output.invalid_block_ids:
            # Other requests of these steps may have computed on the blocks.
            self._manager.store_nothing_under_way()
            assert self._kv_cache_manager is not None
            self._kv_cache_manager.evict_blocks(dependent_blocks(self.scheduler, invalid))
        super().update_connector_output(connector_output)
        # Not with the next step, which may never come.
        self._manager.publish_copied()
        if report.weight_changes > self._weight_changes:
            self._weight_changes = report.weight_changes
            _logger.warning("weights_changed", extra={"change_count": self._weight_changes})
            self.reset_cache()

    def take_events(self) -> "Iterable[KVCacheEvent]":
        """Returns the events of the store's pages since the last call, if events are on.

        vLLM's method names only keys that it stored or looked up itself.
        """
        return self._manager.take_kv_events()

    def reset_cache(self) -> bool | None:
        """Continues in new namespaces. May be called again before the next step.

        vLLM's method expects that no copies are left to flush, but an earlier call left some.
        """
        scheduler = self.scheduler
        earlier = scheduler._current_batch_jobs_to_flush  # noqa: SLF001  # there is no other way
        scheduler._current_batch_jobs_to_flush = set()  # noqa: SLF001
        try:
            done: bool | None = super().reset_cache()
        finally:
            scheduler._current_batch_jobs_to_flush |= earlier  # noqa: SLF001
        return done

    # Methods at a rank.

    @property
    def _copies(self) -> HeldCopies | None:
        copies = None if self.connector_worker is None else self.connector_worker.worker
        return copies if isinstance(copies, HeldCopies) else None

    def handle_preemptions(self, kv_connector_metadata: KVConnectorMetadata) -> None:
        """Ends the copies that the scheduler wants to have ended before the step."""
        super().handle_preemptions(kv_connector_metadata)
        assert isinstance(kv_connector_metadata, OffloadStep)
        if kv_connector_metadata.reset_count != self._reset_count:
            self._reset_count = kv_connector_metadata.reset_count
            self._report.flushed[self._rank] = self._reset_count

    def bind_connector_metadata(self, connector_metadata: KVConnectorMetadata) -> None:
        """Takes a step's plan, and joins its lease."""
        super().bind_connector_metadata(connector_metadata)
        assert isinstance(connector_metadata, OffloadStep)
        if copies := self._copies:
            copies.known_changes = connector_metadata.weight_changes
        join = connector_metadata.join
        if self._memory is not None and join is not None:
            idle = connector_metadata.idle
            self._memory.follow(join.lease, join.identity, lambda: join.layout, idle=idle)

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        """Returns the ended copies, and the requests whose loads failed."""
        results = super().get_transfer_results(finished_req_ids)
        if copies := self._copies:
            failed = copies.take_failed()
            self._report.failed |= failed.numbers
            self._report.faults += failed.faults
            if self._loads_in_step:
                # The request is in the step, so vLLM awaits nothing but the blocks that failed.
                self._report.failed_loads |= failed.request_ids
                self._failed_blocks |= failed.block_ids
                results.finished_recving.clear()
            else:
                results.failed_recving |= failed.request_ids
        return results

    def get_block_ids_with_load_errors(self) -> set[int]:
        """Returns the blocks whose loads within a step failed."""
        failed, self._failed_blocks = self._failed_blocks, set()
        return failed

    def build_connector_worker_meta(self) -> OffloadReport | None:
        """Returns the results since the last step."""
        meta = super().build_connector_worker_meta()
        report, self._report = self._report, OffloadReport()
        if self._memory is not None:
            report.joined += self._memory.take_joined()
        if meta is not None:
            report.completed_jobs = meta.completed_jobs
            report.transfer_stats = meta.transfer_stats
        report.weight_changes = self._weights.count
        says = report.completed_jobs or report.failed or report.joined or report.flushed
        return report if says or report.weight_changes else None

    def shutdown(self) -> None:
        """Releases everything."""
        super().shutdown()
        if self._memory is not None:
            self._memory.close()


def _name_spec(vllm_config: "VllmConfig") -> None:
    """Names the specification to vLLM, so that operators need not; raises for another one.

    Turns off vLLM's own descriptions of events.
    """
    extra = vllm_config.kv_transfer_config.kv_connector_extra_config
    for name, value in SPEC.items():
        if extra.setdefault(name, value) != value:
            raise ValueError(f"{name} is {extra[name]!r}: leave it out, or set {value!r}")
    # Events of our own describe themselves, and vLLM would collect what they need without end.
    extra[SELF_DESCRIBING] = False


# vLLM's MultiConnector finds the class of each connector's counts by its registered name alone.
with suppress(ValueError):  # It is registered already.
    KVConnectorFactory.register_connector(
        KvstoreOffloadingConnector.__name__, __name__, KvstoreOffloadingConnector.__name__
    )
