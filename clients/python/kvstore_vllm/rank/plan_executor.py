"""The connector's half at a rank: copies blocks, and reports the results."""

import logging
import random
from collections import Counter, deque
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from threading import Condition
from typing import Final, NamedTuple, Protocol

import torch

from kvstore_client import DatedRun, PageRef
from kvstore_client.errors import DeviceUnavailable
from kvstore_client.memory.cuda.cuda_driver import CudaDriver
from kvstore_vllm.blocks.block_copier import ExtentTensors
from kvstore_vllm.rank.transfer_stream import DeviceStream, HostStream, TransferStream
from kvstore_vllm.step_plan import BlockTransfer, StepPlan, WorkerReport

_logger = logging.getLogger(__name__)

IDLE_WAIT: Final = 0.001
# The type of the devices whose copies have a stream; torch gives it to AMD's too.
CUDA: Final = "cuda"


class MappedPages(ExtentTensors, Protocol):
    """The store's memory in this process."""

    def fill_page_tables(self, runs: Sequence[DatedRun], part: slice) -> None:
        """Fills this process's page tables for ``part`` of each slot, before it is written."""

    def recycled(self, runs: Sequence[DatedRun]) -> list[PageRef]:
        """Returns the pages whose slots were reused since ``runs`` named them."""


class Copier(Protocol):
    """Copies between a rank's blocks and slots: a ``BlockCopier`` or a ``DescriptorCopier``."""

    @property
    def device(self) -> torch.device:
        """The device of the blocks."""

    @property
    def part(self) -> slice:
        """The rank's bytes of each slot."""

    def load(self, memory: ExtentTensors, transfer: BlockTransfer, *, beside: bool = False) -> int:
        """Begins to copy slots into blocks; returns the bytes."""

    def save(self, memory: ExtentTensors, transfer: BlockTransfer) -> int:
        """Begins to copy blocks into slots; returns the bytes."""


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

# Copies a transfer, and returns its result: on the thread and the stream of its direction.
Copy = Callable[[], Copied]


class _Direction:
    """The loads or the saves of a rank: a stream, and a thread that waits for it."""

    def __init__(self, verb: str, device: torch.device) -> None:
        self.verb = verb
        on_device = device.type == CUDA
        self.stream: TransferStream = DeviceStream(device) if on_device else HostStream()
        self._thread = ThreadPoolExecutor(
            1,
            thread_name_prefix=f"kvstore-vllm-{verb}",
            initializer=_relax_capture if on_device else None,
        )

    def begin(self, copy: Copy) -> "Future[Copied]":
        """Runs ``copy`` on the thread, after what is begun already."""
        return self._thread.submit(copy)

    def close(self) -> None:
        """Waits for the copies that are begun."""
        self._thread.shutdown(wait=True)


class PlanExecutor:
    """Carries out a step's plan. One thread, the rank's, uses it.

    On a device loads and saves run beside the steps, each direction on a stream and a thread of its
    own. The rank's thread waits for neither, except for a load that is part of a step. On a CPU
    saves are copied while the engine computes nothing, by the rank's thread.

    No method raises on a failed copy. A failed load is reported with its blocks, which are
    then computed. A failed save is not inserted. ``fault_fraction`` of the loads fail on
    purpose, for tests, and are counted. Without a copier every planned transfer fails.
    """

    def __init__(self, copier: Copier | None, *, fault_fraction: float = 0.0) -> None:
        self.counts: Counter[str] = Counter()
        self._copier = copier
        device = torch.device("cpu") if copier is None else copier.device
        self._on_device = device.type == CUDA
        self._fault_fraction = fault_fraction
        self._chance = random.Random()  # noqa: S311  # which load a test fails is no secret
        self._loads, self._saves = _Direction("load", device), _Direction("save", device)
        # Transfers that ended beside a step, and under the same lock the number of open saves of
        # each request.
        self._news = Condition()
        self._ended: deque[tuple[str, BlockTransfer, Copied]] = deque()
        self._saving: Counter[str] = Counter()
        self._under_way = 0
        self._idle = False
        self._report = WorkerReport()
        self._failed_blocks: set[int] = set()
        self._received: set[str] = set()
        self._let_go: set[str] = set()

    def wait_for_saves(self, request_ids: Collection[str]) -> None:
        """Waits until no block of these requests is being saved."""
        if request_ids:
            with self._news:
                self._news.wait_for(lambda: not any(self._saving[each] for each in request_ids))

    def load(self, plan: StepPlan, memory: MappedPages | None) -> None:
        """Loads the plan's pages: beside the step, or before it if a load is part of it."""
        self._idle = plan.idle
        # The step's own work on these blocks, such as zeroing them, comes first.
        ready = self._loads.stream.mark() if plan.loads else None
        loads = [
            (each, partial(self._load, memory, each, ready, beside=plan.load_async))
            for each in plan.loads
        ]
        if plan.load_async:
            for transfer, load in loads:
                self._begin(self._loads, transfer, load)
            return
        for transfer, load in loads:
            # CUDA takes copies of the directions' threads alone, which break no capture.
            copied = self._loads.begin(load).result() if self._on_device else load()
            self._end_load(transfer, copied)

    def save(self, plan: StepPlan, memory: MappedPages | None) -> None:
        """Copies the blocks that the step computed.

        On a CPU the copies are complete on return. On a device they begin after the step's work,
        and a later report has their results.
        """
        self._let_go |= plan.let_go
        ready = self._saves.stream.mark() if plan.saves else None
        for transfer in plan.saves:
            save = partial(self._copied, memory, transfer, ready, to_blocks=False)
            if self._on_device:
                with self._news:
                    self._saving[transfer.request_id] += 1
                self._begin(self._saves, transfer, save)
            else:
                self._end(transfer, save(), self._saves.verb)

    def take_finished(self) -> tuple[set[str], set[str]]:
        """Returns the released requests, and those whose loads ended, well or not.

        After a step that computed nothing it waits a millisecond for a transfer. Polling would
        keep the GIL from the threads that copy.
        """
        if self._idle and self._under_way:
            with self._news:
                self._news.wait_for(lambda: self._ended, IDLE_WAIT)
        self._take_ended()
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
        """Waits for the transfers that are under way."""
        self._loads.close()
        self._saves.close()

    def _begin(self, direction: _Direction, transfer: BlockTransfer, copy: Copy) -> None:
        self._under_way += 1
        future = direction.begin(copy)
        future.add_done_callback(partial(self._note_end, direction.verb, transfer))

    def _note_end(self, verb: str, transfer: BlockTransfer, future: "Future[Copied]") -> None:
        """Notes the end of a transfer, on the thread that copied."""
        copied = FAILED if future.cancelled() or future.exception() else future.result()
        with self._news:
            self._ended.append((verb, transfer, copied))
            if verb == self._saves.verb:
                self._saving[transfer.request_id] -= 1
                if not self._saving[transfer.request_id]:
                    del self._saving[transfer.request_id]
            self._news.notify_all()

    def _take_ended(self) -> None:
        while self._ended:
            verb, transfer, copied = self._ended.popleft()
            self._under_way -= 1
            if verb == self._saves.verb:
                self._end(transfer, copied, verb)
            else:
                self._received.add(transfer.request_id)
                self._end_load(transfer, copied)

    def _end_load(self, transfer: BlockTransfer, copied: Copied) -> None:
        self._end(transfer, copied, self._loads.verb)
        self.counts["load_faults"] += copied.made_to_fail
        if not copied.ok:
            self._failed_blocks.update(transfer.block_ids)

    def _end(self, transfer: BlockTransfer, copied: Copied, verb: str) -> None:
        self._report.ended[transfer.job] += 1
        if not copied.ok:
            self._report.failed.add(transfer.job)
        self.counts[f"{verb}_bytes"] += copied.byte_count
        self.counts[f"{verb}_microseconds"] += copied.microseconds

    def _load(
        self,
        memory: MappedPages | None,
        transfer: BlockTransfer,
        ready: torch.cuda.Event | None,
        *,
        beside: bool,
    ) -> Copied:
        if self._fault_fraction and self._chance.random() < self._fault_fraction:
            return Copied(ok=False, made_to_fail=True)
        return self._copied(memory, transfer, ready, to_blocks=True, beside=beside)

    def _copied(
        self,
        memory: MappedPages | None,
        transfer: BlockTransfer,
        ready: torch.cuda.Event | None,
        *,
        to_blocks: bool,
        beside: bool = False,
    ) -> Copied:
        """Copies, waits for the device, and checks that the slots are still the same pages."""
        if memory is None or self._copier is None:
            return FAILED
        load = partial(self._copier.load, beside=beside)
        copy, direction = (load, self._loads) if to_blocks else (self._copier.save, self._saves)
        try:
            # It keeps the memory mapped until the copies are complete.
            held = _Held(memory)
            if not to_blocks:
                memory.fill_page_tables(transfer.runs, self._copier.part)
            timed = direction.stream.run(ready, partial(copy, held, transfer))
            recycled = memory.recycled(transfer.runs)
        except KeyError as error:
            # The store or the session that had the extent has ended meanwhile.
            reason = f"extent {error} is not mapped any more"
            _logger.warning("blocks_not_copied", extra={"reason": reason})
            return FAILED
        except Exception:
            _logger.exception("blocks_not_copied")
            return FAILED
        if recycled:
            _logger.error("pages_recycled", extra={"page_count": len(recycled)})
            return FAILED
        return Copied(ok=True, byte_count=timed.byte_count, microseconds=timed.microseconds)


def _relax_capture() -> None:
    """Allows the calling thread to copy while vLLM captures a graph on another thread."""
    try:
        CudaDriver().relax_capture()
    except DeviceUnavailable as error:
        _logger.warning("capture_not_relaxed", extra={"reason": str(error)})
