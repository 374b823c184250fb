"""The connector's half at a rank: copies blocks, and reports the results."""

import logging
import random
import time
from collections import Counter, deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Condition
from typing import Final, NamedTuple, Protocol

import torch

from kvstore_client import DatedRun, PageRef
from kvstore_client.errors import DeviceUnavailable
from kvstore_client.memory.cuda.cuda_driver import CudaDriver
from kvstore_vllm.blocks.block_copier import BlockCopier, ExtentTensors
from kvstore_vllm.step_plan import BlockTransfer, StepPlan, WorkerReport

_logger = logging.getLogger(__name__)

MICROSECONDS: Final = 1e6
IDLE_WAIT: Final = 0.001


class MappedPages(ExtentTensors, Protocol):
    """The store's memory in this process."""

    def fill_page_tables(self, runs: Sequence[DatedRun], part: slice) -> None:
        """Fills this process's page tables for ``part`` of each slot, before it is written."""

    def recycled(self, runs: Sequence[DatedRun]) -> list[PageRef]:
        """Returns the pages whose slots were reused since ``runs`` named them."""


class _Held:
    """The store's memory; its extents stay mapped as long as this object lives."""

    def __init__(self, memory: ExtentTensors) -> None:
        self._memory = memory
        self._used: list[torch.Tensor] = []

    def extent_tensor(self, extent_id: int) -> torch.Tensor:
        """Returns all slots of an extent."""
        self._used.append(self._memory.extent_tensor(extent_id))
        return self._used[-1]


class Copied(NamedTuple):
    """The result of a transfer."""

    ok: bool
    byte_count: int = 0
    microseconds: int = 0
    made_to_fail: bool = False


FAILED: Final = Copied(ok=False)


class PlanExecutor:
    """Carries out a step's plan. One thread, the rank's, uses it.

    No method raises on a failed copy. A failed load is reported with its blocks, which are
    then computed. A failed save is not inserted. ``fault_fraction`` of the loads fail on
    purpose, for tests, and are counted. Without a copier every planned transfer fails.
    """

    def __init__(self, copier: BlockCopier | None, *, fault_fraction: float = 0.0) -> None:
        self.counts: Counter[str] = Counter()
        self._copier = copier
        self._on_cuda = copier is not None and copier.device.type == "cuda"
        self._fault_fraction = fault_fraction
        self._chance = random.Random()  # noqa: S311  # which load a test fails is no secret
        self._thread = ThreadPoolExecutor(
            1,
            thread_name_prefix="kvstore-vllm-load",
            initializer=_relax_capture if self._on_cuda else None,
        )
        self._loaded: deque[tuple[BlockTransfer, Copied]] = deque()
        self._news = Condition()
        self._under_way = 0
        self._idle = False
        self._stream = torch.cuda.Stream() if self._on_cuda else None
        self._report = WorkerReport()
        self._failed_blocks: set[int] = set()
        self._received: set[str] = set()
        self._let_go: set[str] = set()

    def load(self, plan: StepPlan, memory: MappedPages | None) -> None:
        """Loads the plan's pages: beside the step, or before it if a load is part of it."""
        self._idle = plan.idle
        if not plan.loads:
            return
        if not plan.load_async:
            for transfer in plan.loads:
                self._end_load(transfer, self._load(memory, transfer))
            return
        ready = None
        if self._stream is not None:
            # The step's own work on these blocks, such as zeroing them, comes first.
            ready = torch.cuda.Event()
            ready.record()
        self._under_way += len(plan.loads)
        for transfer in plan.loads:
            self._thread.submit(self._load_beside, memory, transfer, ready)

    def save(self, plan: StepPlan, memory: MappedPages | None) -> None:
        """Copies the blocks that the step computed; the copies are complete on return."""
        self._let_go |= plan.let_go
        for transfer in plan.saves:
            self._end(transfer, self._copied(memory, transfer, to_blocks=False), "save")

    def take_finished(self) -> tuple[set[str], set[str]]:
        """Returns the released requests, and those whose loads ended, well or not.

        After a step that computed nothing it waits a millisecond for a load. Polling would
        keep the GIL from the loads' thread.
        """
        if self._idle and self._under_way:
            with self._news:
                self._news.wait_for(lambda: self._loaded, IDLE_WAIT)
        while self._loaded:
            transfer, copied = self._loaded.popleft()
            self._under_way -= 1
            self._received.add(transfer.request_id)
            self._end_load(transfer, copied)
        let_go, self._let_go = self._let_go, set()
        received, self._received = self._received, set()
        return let_go, received

    def take_failed_blocks(self) -> set[int]:
        """Returns the blocks whose load failed and that have to be computed."""
        failed, self._failed_blocks = self._failed_blocks, set()
        return failed

    def take_report(self) -> WorkerReport:
        """Returns the results since the last report."""
        report, self._report = self._report, WorkerReport()
        return report

    def close(self) -> None:
        """Waits for the loads that are under way."""
        self._thread.shutdown(wait=True)

    def _end_load(self, transfer: BlockTransfer, copied: Copied) -> None:
        self._end(transfer, copied, "load")
        self.counts["load_faults"] += copied.made_to_fail
        if not copied.ok:
            self._failed_blocks.update(transfer.block_ids)

    def _end(self, transfer: BlockTransfer, copied: Copied, verb: str) -> None:
        self._report.ended[transfer.job] += 1
        if not copied.ok:
            self._report.failed.add(transfer.job)
        self.counts[f"{verb}_bytes"] += copied.byte_count
        self.counts[f"{verb}_microseconds"] += copied.microseconds

    def _load_beside(
        self, memory: MappedPages | None, transfer: BlockTransfer, ready: torch.cuda.Event | None
    ) -> None:
        copied = FAILED
        try:
            if self._stream is None or ready is None:
                copied = self._load(memory, transfer, beside=True)
            else:
                with torch.cuda.stream(self._stream):
                    self._stream.wait_event(ready)
                    copied = self._load(memory, transfer, beside=True)
        finally:
            with self._news:
                self._loaded.append((transfer, copied))
                self._news.notify_all()

    def _load(
        self, memory: MappedPages | None, transfer: BlockTransfer, *, beside: bool = False
    ) -> Copied:
        if self._fault_fraction and self._chance.random() < self._fault_fraction:
            return Copied(ok=False, made_to_fail=True)
        return self._copied(memory, transfer, to_blocks=True, beside=beside)

    def _copied(
        self,
        memory: MappedPages | None,
        transfer: BlockTransfer,
        *,
        to_blocks: bool,
        beside: bool = False,
    ) -> Copied:
        """Copies, waits for the device, and checks that the slots are still the same pages."""
        if memory is None or self._copier is None:
            return FAILED
        load = partial(self._copier.load, beside=beside)
        copy = load if to_blocks else self._copier.save
        begin = time.monotonic()
        try:
            held = _Held(memory)
            if not to_blocks:
                memory.fill_page_tables(transfer.runs, self._copier.part)
            try:
                byte_count = copy(held, transfer)
            finally:
                # Copies begun before the failed one still use slots that are released next.
                if self._on_cuda:
                    torch.cuda.current_stream().synchronize()
            recycled = memory.recycled(transfer.runs)
        except Exception:
            _logger.exception("blocks_not_copied")
            return FAILED
        if recycled:
            _logger.error("pages_recycled", extra={"page_count": len(recycled)})
            return FAILED
        return Copied(
            ok=True,
            byte_count=byte_count,
            microseconds=round((time.monotonic() - begin) * MICROSECONDS),
        )


def _relax_capture() -> None:
    """Allows the calling thread to copy while vLLM captures a graph on another thread."""
    try:
        CudaDriver().relax_capture()
    except DeviceUnavailable as error:
        _logger.warning("capture_not_relaxed", extra={"reason": str(error)})
