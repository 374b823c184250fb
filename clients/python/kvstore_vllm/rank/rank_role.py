"""The connector's half at a rank, with the store's memory."""

import logging
from collections import Counter
from collections.abc import Mapping
from threading import Thread
from typing import Any, Final

import torch

from kvstore_client import Client, ClientConfig, Namespace, NamespaceIdentity
from kvstore_vllm.blocks.block_copier import BlockCopier, planes_of
from kvstore_vllm.blocks.descriptor_copier import DescriptorCopier, Submit
from kvstore_vllm.blocks.engine_layout import layout_of
from kvstore_vllm.engine.connector_settings import ConnectorSettings
from kvstore_vllm.engine.engine_facts import EngineFacts
from kvstore_vllm.engine.store_access import ENGINES_HERE, copies_are_done
from kvstore_vllm.rank.plan_executor import CUDA, Copier, PlanExecutor
from kvstore_vllm.step_plan import StepPlan, WorkerReport

_logger = logging.getLogger(__name__)

# Seconds that a step without work waits, while requests wait for this rank to reach the store.
JOIN_WAIT: Final = 0.01


class RankRole:
    """Reaches the store's memory through the scheduler half's client, or joins its lease.

    The rank's thread uses it. A plan with another lease belongs to a new session: the rank
    joins that one and leaves the old one.
    """

    def __init__(
        self,
        vllm_config: Any,  # noqa: ANN401  # a VllmConfig
        settings: ConnectorSettings,
        facts: EngineFacts,
        submit: Submit,
    ) -> None:
        """Copies between a device's blocks and slots by ``submit``."""
        self._submit = submit
        self._vllm_config = vllm_config
        self._settings = settings
        self._facts = facts
        self._executor: PlanExecutor | None = None
        self._loads_early = False
        self._begun: StepPlan | None = None
        self._report = WorkerReport()
        self._lease: bytes | None = None
        self._client: Client | None = None
        self._memory: Namespace | None = None
        self._told = False
        self._none: Counter[str] = Counter()
        # The device that vLLM has selected for this rank.
        on_gpu = vllm_config.device_config.device_type == CUDA
        self._device = torch.cuda.current_device() if on_gpu else None
        ENGINES_HERE.note_rank(facts.engine_id, self._device)

    def register(self, kv_caches: Mapping[str, torch.Tensor]) -> None:
        """Stores the memory of the blocks; logs an error if its layout is not the scheduler's."""
        rank = self._vllm_config.parallel_config.rank % self._facts.tensor_parallel_size
        copier: Copier | None
        try:
            planes = planes_of(self._facts.pieces, kv_caches)
            if planes and planes[0].blocks.device.type == CUDA:
                copier = DescriptorCopier(planes, self._submit, rank)
            else:
                copier = BlockCopier(planes, rank)
        except (KeyError, ValueError) as error:
            _logger.error("kvstore_turned_off", extra={"reason": str(error)})  # noqa: TRY400
            self._report.disagrees = True
            # Transfers planned before the scheduler knows that fail, and are reported as usual.
            copier = None
        self._executor = PlanExecutor(copier, fault_fraction=self._settings.fault_load_fraction)
        # A GPU's loads follow the step's work in the queue of the device. On a CPU the step would
        # have ended by then, so they begin first, unless the step zeroes their blocks later.
        on_cpu = copier is not None and copier.device.type == "cpu"
        self._loads_early = on_cpu and not self._facts.zeroes_blocks

    def prepare(self, plan: StepPlan) -> None:
        """Waits for saves of blocks that vLLM took back, and begins early loads.

        Early loads run beside the step's forward, and may begin before it.
        """
        if self._executor is not None:
            self._executor.wait_for_saves(plan.preempted)
        if self._loads_early and plan.loads and plan.load_async:
            self.load(plan)
            self._begun = plan

    def load(self, plan: StepPlan) -> None:
        """Begins the plan's loads, unless :meth:`prepare` did."""
        begun, self._begun = self._begun, None
        if self._executor is not None and plan is not begun:
            self._executor.load(plan, self._mapped(plan))

    def save(self, plan: StepPlan) -> None:
        """Carries out the plan's saves."""
        if self._executor is not None:
            self._executor.save(plan, self._mapped(plan))

    def take_finished(self) -> tuple[set[str] | None, set[str] | None]:
        """Returns the requests that are let go, and those whose loads ended."""
        return (None, None) if self._executor is None else self._executor.take_finished()

    def take_failed_blocks(self) -> set[int]:
        """Returns the blocks whose loads failed."""
        return set() if self._executor is None else self._executor.take_failed_blocks()

    def take_report(self) -> WorkerReport:
        """Returns the results, and whether this rank reaches the store."""
        report, self._report = self._report, WorkerReport()
        if self._executor is not None:
            report.add(self._executor.take_report())
        if self._memory is not None and not self._told and self._memory.failure is None:
            self._told = True
            assert self._lease is not None
            report.joined[self._lease] += 1
        return report

    @property
    def counts(self) -> "Counter[str]":
        """The counts and times of copies, until the caller takes them out."""
        return self._none if self._executor is None else self._executor.counts

    def close(self) -> None:
        """Waits for transfers under way, and leaves the lease."""
        if self._executor is not None:
            self._executor.close()
        if self._client is not None:
            self._client.close()

    def _mapped(self, plan: StepPlan) -> Namespace | None:
        """Returns the store's memory as far as it is mapped here."""
        access = ENGINES_HERE.get(plan.engine_id)
        if access is not None:
            return access.memory
        if plan.lease is not None and plan.lease != self._lease:
            assert plan.identity is not None
            self._join(plan.lease, plan.identity)
        if plan.idle and self._memory is not None and not self._told:
            self._memory.wait_open(JOIN_WAIT)
        return self._memory

    def _join(self, lease: bytes, identity: NamespaceIdentity) -> None:
        if self._client is not None:
            # Joining waits for a store that may be absent, and the step would wait for nothing.
            Thread(target=self._client.close, name="kvstore-vllm-leave", daemon=True).start()
        # The store may grow during a prompt, and filling a whole extent would delay the prompt.
        config = ClientConfig(
            call_timeout=self._settings.lookup_timeout,
            wait_for_device=copies_are_done,
            host_memory_device=self._device,
            fill_page_tables=False,
        )
        self._lease, self._told = lease, False
        self._client = Client(self._settings.runtime_dir, config, join=lease)
        self._client.start()
        self._memory = self._client.namespace(identity, layout_of(self._facts.layout))
