"""vLLM's worker over the store's memory: a copy that is not safe is never begun."""

import logging
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from vllm.v1.kv_offload.base import (
    GPULoadStoreSpec,
    LoadStoreSpec,
    OffloadingWorker,
    TransferResult,
)
from vllm.v1.kv_offload.cpu.common import CPULoadStoreSpec

from kvstore_client import AddressRange, Namespace
from kvstore_vllm.offload.messages import StorePages
from kvstore_vllm.rank.rank_memory import RankMemory
from kvstore_vllm.rank.weight_changes import WeightChanges

_logger = logging.getLogger(__name__)

# Makes vLLM's worker for the rows of a session.
MakeWorker = Callable[[AddressRange], OffloadingWorker]


@dataclass(slots=True)
class _Copy:
    """A copy under way. ``held`` keeps the memory of its pages mapped.

    ``weight_changes`` counts those until its begin.
    """

    pages: StorePages
    block_ids: Sequence[int]
    worker: OffloadingWorker
    memory: Namespace
    held: Sequence[memoryview]
    is_load: bool
    weight_changes: int


@dataclass(slots=True)
class FailedCopies:
    """Copies that failed by their numbers, and the requests and blocks whose loads did.

    ``faults`` counts those that failed on purpose.
    """

    numbers: set[int] = field(default_factory=set)
    request_ids: set[str] = field(default_factory=set)
    block_ids: set[int] = field(default_factory=set)
    faults: int = 0


class HeldCopies(OffloadingWorker):
    """Copies through a worker of vLLM's, which has no way to report a failure.

    Each copy holds the memory of its pages until it ended. Pages that are not mapped here are
    not copied. A load whose slots were reused meanwhile failed, and so did each copy that was
    planned before the weights changed last, and each load under way then. vLLM hears of each
    copy that it succeeded, and :meth:`take_failed` says which did not: those requests are
    computed.

    A page of several blocks is written whole or not at all. vLLM leaves blocks out that slid out of
    a window, and their part of the slot has an earlier page's bytes.

    A new session of the store has other addresses, and so another worker of vLLM's. The rank's
    thread uses it. ``fault_fraction`` of the loads fail on purpose, for tests.
    """

    def __init__(
        self,
        memory: RankMemory,
        make_worker: MakeWorker,
        weights: WeightChanges | None = None,
        *,
        blocks_per_page: int = 1,
        fault_fraction: float = 0.0,
    ) -> None:
        # The changes of weights that the step's plan knows of.
        self.known_changes = 0
        self._weights = weights or WeightChanges()
        self._memory = memory
        self._make_worker = make_worker
        self._blocks_per_page = blocks_per_page
        self._fault_fraction = fault_fraction
        self._chance = random.Random()  # noqa: S311  # which load a test fails is no secret
        self._workers: dict[int, tuple[AddressRange, OffloadingWorker]] = {}
        self._copies: dict[int, _Copy] = {}
        self._ended: list[TransferResult] = []
        self._failed = FailedCopies()

    def submit_store(
        self, job_id: int, src_spec: GPULoadStoreSpec, dst_spec: LoadStoreSpec
    ) -> bool:
        """Begins to copy blocks into reserved slots."""
        assert isinstance(dst_spec, StorePages)
        begun = self._begin(job_id, dst_spec, src_spec, is_load=False)
        if begun is not None:
            worker, rows = begun
            worker.submit_store(job_id, src_spec, rows)
        return True

    def submit_load(self, job_id: int, src_spec: LoadStoreSpec, dst_spec: GPULoadStoreSpec) -> bool:
        """Begins to copy pages into blocks."""
        assert isinstance(src_spec, StorePages)
        begun = self._begin(job_id, src_spec, dst_spec, is_load=True)
        if begun is not None:
            worker, rows = begun
            worker.submit_load(job_id, rows, dst_spec)
        return True

    def get_finished(self) -> list[TransferResult]:
        """Returns the copies that ended, all as successes."""
        ended, self._ended = self._ended, []
        for key, (_, worker) in list(self._workers.items()):
            ended += [self._checked(result) for result in worker.get_finished()]
            self._end_if_old(key)
        return ended

    def take_failed(self) -> FailedCopies:
        """Returns the copies that failed since the last call."""
        failed, self._failed = self._failed, FailedCopies()
        return failed

    def wait(self, job_ids: set[int]) -> None:
        """Waits until these copies ended."""
        for _, worker in self._workers.values():
            worker.wait(job_ids)

    def shutdown(self) -> None:
        """Waits for all copies and drops the memory."""
        for _, worker in self._workers.values():
            worker.shutdown()
        self._workers.clear()
        self._copies.clear()

    def _begin(
        self, job_id: int, pages: StorePages, blocks: GPULoadStoreSpec, *, is_load: bool
    ) -> tuple[OffloadingWorker, CPULoadStoreSpec] | None:
        """Holds the memory of a copy; returns its worker and rows, or None if it fails."""
        memory = self._memory.mapped
        block_ids = blocks.block_ids.tolist()
        try:
            if memory is None or pages.runs is None:
                raise KeyError("the pages are not held")  # noqa: TRY301  # as an unmapped extent is
            if self.known_changes != self._weights.count:
                raise KeyError("the weights have changed")  # noqa: TRY301
            held = [memory.extent(extent_id) for extent_id in {run.extent_id for run in pages.runs}]
            addresses = memory.address_range
            if addresses is None:
                raise KeyError("the pages have no addresses")  # noqa: TRY301
            rows = addresses.rows(pages.runs)
            if not is_load and len(block_ids) != len(rows) * self._blocks_per_page:
                raise ValueError("blocks of a page are left out")  # noqa: TRY301
            worker = self._worker(addresses)
        except Exception as error:  # noqa: BLE001  # a copy that cannot be made is a miss
            _logger.warning("blocks_not_copied", extra={"reason": repr(error)})
            self._fail(job_id, pages, block_ids, is_load=is_load)
            return None
        if is_load and self._fault_fraction and self._chance.random() < self._fault_fraction:
            self._failed.faults += 1
            self._fail(job_id, pages, block_ids, is_load=True)
            return None
        changes = self._weights.count
        self._copies[job_id] = _Copy(pages, block_ids, worker, memory, held, is_load, changes)
        return worker, CPULoadStoreSpec(rows.tolist())

    def _worker(self, addresses: AddressRange) -> OffloadingWorker:
        found = self._workers.get(id(addresses))
        if found is None:
            found = addresses, self._make_worker(addresses)
            self._workers[id(addresses)] = found
        return found[1]

    def _checked(self, result: TransferResult) -> TransferResult:
        """Notes a copy that failed, or whose pages were reused; returns it as a success."""
        copy = self._copies.pop(result.job_id)
        assert copy.pages.runs is not None
        reused = copy.is_load and bool(copy.memory.recycled(copy.pages.runs))
        if reused:
            _logger.error("pages_recycled", extra={"request_id": copy.pages.request_id})
        outdated = copy.is_load and copy.weight_changes != self._weights.count
        if reused or outdated or not result.success:
            self._note_failed(copy.pages, copy.block_ids, is_load=copy.is_load)
        return TransferResult(
            result.job_id,
            True,  # noqa: FBT003  # vLLM's field
            result.transfer_size,
            result.transfer_time,
        )

    def _fail(
        self, job_id: int, pages: StorePages, block_ids: Sequence[int], *, is_load: bool
    ) -> None:
        self._note_failed(pages, block_ids, is_load=is_load)
        self._ended.append(TransferResult(job_id, True))  # noqa: FBT003  # vLLM's field

    def _note_failed(self, pages: StorePages, block_ids: Sequence[int], *, is_load: bool) -> None:
        self._failed.numbers.add(pages.number)
        if is_load:
            self._failed.request_ids.add(pages.request_id)
            self._failed.block_ids.update(block_ids)

    def _end_if_old(self, key: int) -> None:
        """Ends the worker of an earlier session once it copies nothing more."""
        addresses, worker = self._workers[key]
        memory = self._memory.mapped
        now = None if memory is None else memory.address_range
        if now is addresses or any(copy.worker is worker for copy in self._copies.values()):
            return
        del self._workers[key]
        worker.shutdown()
