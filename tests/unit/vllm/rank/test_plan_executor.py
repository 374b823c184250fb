"""A rank's executor copies blocks and reports failures."""

import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, get_ident
from types import SimpleNamespace

import pytest
import torch

from device.card import Card
from device.client_driver import client_driver
from kvstore_client import DatedRun, PageRef
from kvstore_client.memory.cuda import cuda_driver
from kvstore_client.memory.cuda.host_registration import host_registrar
from kvstore_client.testing import wait_until
from kvstore_vllm.blocks.block_copier import BlockCopier, Plane
from kvstore_vllm.rank.plan_executor import PlanExecutor
from kvstore_vllm.step_plan import BlockTransfer, StepPlan
from vllm_rig.block_layouts import LAYOUTS, Layout, slots
from vllm_rig.executor_copies import BESIDE_CHECKS, COPY_CHECKS, Check, peak_of, rates
from vllm_rig.step_queues import CpuQueue, StandInQueue, StepQueue

BLOCK = 16


@dataclass
class Memory:
    """One extent of a store. Its slots may be recycled."""

    slots: torch.Tensor = field(default_factory=lambda: torch.ones((4, BLOCK), dtype=torch.uint8))
    given_away: list[PageRef] = field(default_factory=list)
    filled: list[tuple[object, slice]] = field(default_factory=list)

    def extent_tensor(self, extent_id: int) -> torch.Tensor:
        """Returns the only extent."""
        return {0: self.slots}[extent_id]

    def fill_page_tables(self, runs: Sequence[DatedRun], part: slice) -> None:
        """Notes the slots, and the part of each, that are about to be written."""
        self.filled.append((runs, part))

    def recycled(self, runs: Sequence[DatedRun]) -> list[PageRef]:
        """Returns the pages that were recycled."""
        del runs
        return self.given_away


@dataclass
class Rig:
    """A rank with eight blocks."""

    executor: PlanExecutor
    blocks: torch.Tensor
    memory: Memory

    def plan(self, *, load_async: bool = True, extent_id: int = 0) -> StepPlan:
        """Returns a plan to load blocks 2 and 3 as request r, and to save block 5 as request s."""
        return StepPlan(
            "engine",
            load_async=load_async,
            loads=[BlockTransfer(1, "r", (2, 3), (DatedRun(extent_id, [0, 1]),))],
            saves=[BlockTransfer(2, "s", (5,), (DatedRun(extent_id, [3]),))],
            let_go={"gone"},
        )

    def run(self, plan: StepPlan, memory: Memory | None) -> None:
        """Runs a plan like a step, and waits for its loads."""
        self.executor.load(plan, memory)
        self.executor.save(plan, memory)
        self.executor.close()


@pytest.fixture
def rig() -> Iterator[Rig]:
    """A rank whose blocks are all 7."""
    blocks = torch.full((8, 1, BLOCK), 7, dtype=torch.uint8)
    executor = PlanExecutor(BlockCopier([Plane(blocks, 0)]))
    yield Rig(executor, blocks, Memory())
    executor.close()


def test_loads_and_saves_are_copied_and_reported(rig: Rig) -> None:
    """Each load and save is copied and reported once, a load beside the step with its request."""
    rig.run(rig.plan(), rig.memory)
    assert rig.blocks[:, 0, 0].tolist() == [7, 7, 1, 1, 7, 7, 7, 7]
    assert rig.memory.slots[:, 0].tolist() == [1, 1, 1, 7]
    assert rig.executor.take_finished() == ({"gone"}, {"r"})
    assert rig.executor.take_finished() == (set(), set())
    assert rig.executor.take_failed_blocks() == set()
    report = rig.executor.take_report()
    assert report.ended == Counter({1: 1, 2: 1})
    assert report.failed == set()
    assert not rig.executor.take_report()
    assert rig.executor.counts["load_bytes"] == 2 * BLOCK
    assert rig.executor.counts["save_bytes"] == BLOCK


def test_slots_are_filled_before_a_save(rig: Rig) -> None:
    """A save fills page tables for the rank's part of the slots that it writes; a load does not."""
    plan = rig.plan()
    rig.run(plan, rig.memory)
    assert rig.memory.filled == [(plan.saves[0].runs, slice(0, BLOCK))]


def test_a_load_within_the_step_is_complete_and_tells_no_request(rig: Rig) -> None:
    """A load within the step reports no request, because vLLM waits for the step."""
    plan = rig.plan(load_async=False)
    rig.executor.load(plan, rig.memory)
    assert rig.blocks[2, 0, 0] == 1
    assert rig.executor.take_finished() == (set(), set())
    assert rig.executor.take_report().ended == Counter({1: 1})


def test_a_step_that_computes_nothing_waits_a_little_for_loads(rig: Rig) -> None:
    """An idle step waits a bounded time for loads. A later step reports a slower load."""
    goes_on = Event()

    class Slow(Memory):
        def extent_tensor(self, extent_id: int) -> torch.Tensor:
            assert goes_on.wait(30)
            return super().extent_tensor(extent_id)

    plan = rig.plan()
    plan.idle = True
    rig.executor.load(plan, Slow())
    assert rig.executor.take_finished()[1] == set()
    goes_on.set()
    assert wait_until(lambda: rig.executor.take_finished()[1] == {"r"})
    assert rig.executor.take_finished()[1] == set()


def thread_count() -> int:
    """Returns the number of threads, including native ones, that have this thread's name.

    Threads with other names, such as gRPC's, come and go for other tests.
    """
    own, count = Path("/proc/thread-self/comm").read_text(), 0
    for each in Path("/proc/self/task").iterdir():
        with suppress(OSError):
            count += (each / "comm").read_text() == own
    return count


def test_a_load_beside_the_step_has_no_team_of_torchs() -> None:
    """A load beside the step starts no thread team of torch, which would slow the engine's own."""
    block_bytes = 1 << 20  # torch splits a copy of this size between threads
    blocks = torch.zeros((8, 1, block_bytes), dtype=torch.uint8)
    executor = PlanExecutor(BlockCopier([Plane(blocks, 0)]))
    rig = Rig(executor, blocks, Memory(torch.ones((4, block_bytes), dtype=torch.uint8)))
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        executor.load(rig.plan(load_async=False), rig.memory)
        own = thread_count()
        executor.load(rig.plan(), rig.memory)
        assert wait_until(lambda: executor.take_finished()[1] == {"r"})
        assert blocks[3].all()
        assert thread_count() <= own + 1
    finally:
        torch.set_num_threads(before)
        executor.close()


def failing(rig: Rig, what: str) -> tuple[StepPlan, Memory | None]:
    """Returns a plan and a memory for which copies fail."""
    if what == "given away":
        rig.memory.given_away.append(PageRef(0, 1))
    plan = rig.plan(extent_id=9 if what == "no such extent" else 0)
    return plan, None if what == "no store" else rig.memory


@pytest.mark.parametrize("what", ["no store", "no such extent", "given away"])
@pytest.mark.filterwarnings("ignore")
def test_whatever_fails_is_told_by_its_blocks_and_raises_nothing(
    rig: Rig, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A failed load raises nothing and reports its blocks and its request, which vLLM computes."""
    plan, memory = failing(rig, what)
    rig.run(plan, memory)
    # A store that has ended is no bug, so its line has no traceback.
    assert not [each for each in caplog.records if each.exc_info]
    assert rig.executor.take_finished() == ({"gone"}, {"r"})
    assert rig.executor.take_failed_blocks() == {2, 3}
    assert rig.executor.take_failed_blocks() == set()
    report = rig.executor.take_report()
    assert report.ended == Counter({1: 1, 2: 1})
    assert report.failed == {1, 2}


def test_loads_are_made_to_fail_as_often_as_is_said(rig: Rig) -> None:
    """The fault fraction makes that share of loads fail, counts them, and leaves saves alone."""
    executor = PlanExecutor(BlockCopier([Plane(rig.blocks, 0)]), fault_fraction=1.0)
    plan = rig.plan(load_async=False)
    executor.load(plan, rig.memory)
    executor.save(plan, rig.memory)
    assert executor.counts["load_faults"] == 1
    assert executor.take_failed_blocks() == {2, 3}
    assert executor.take_report().failed == {1}
    assert rig.blocks[2, 0, 0] == 7
    executor.close()


class OneUse:
    """The store's memory, which is unmapped with the last view of it."""

    def __init__(self) -> None:
        self.memory: Memory | None = Memory()
        self.slots = weakref.ref(self.memory.slots)

    def extent_tensor(self, extent_id: int) -> torch.Tensor:
        """Returns the extent and drops its own reference."""
        assert self.memory is not None
        memory, self.memory = self.memory, None
        return memory.extent_tensor(extent_id)

    def fill_page_tables(self, runs: Sequence[DatedRun], part: slice) -> None:
        """Does nothing."""

    def recycled(self, runs: Sequence[DatedRun]) -> list[PageRef]:
        """Returns no pages."""
        del runs
        return []


class CudaObjects:
    """Stand-ins for torch's streams and events; ``seen`` has what each wait for an end saw."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, look: Callable[[], object]) -> None:
        self.seen: list[object] = []
        self.calls: list[str] = []
        rig = self

        class Stream:
            """A stream."""

            @staticmethod
            def priority_range() -> tuple[int, int]:
                """Returns CUDA's lowest and highest."""
                return 0, -5

            def __init__(self, device: torch.device, priority: int) -> None:
                assert (device.type, priority) == ("cuda", 0)

            def wait_event(self, event: object) -> None:
                """Notes the wait."""
                assert isinstance(event, CudaEvent)
                rig.calls.append("wait for the step")

        class CudaEvent:
            """An event."""

            def __init__(self, *, enable_timing: bool = False, blocking: bool = False) -> None:
                self.blocking = blocking
                self.timed = enable_timing

            def record(self, stream: object) -> None:
                """Notes where it is recorded."""
                kind = "copies" if isinstance(stream, Stream) else "step"
                rig.calls.append(f"record on the {kind}")

            def synchronize(self) -> None:
                """Notes what the wait sees."""
                assert self.blocking
                rig.calls.append("synchronize")
                rig.seen.append(look())

            def elapsed_time(self, end: "CudaEvent") -> float:
                """Returns milliseconds."""
                assert self.timed
                assert end.timed
                return 1.5

        monkeypatch.setattr(torch.cuda, "Stream", Stream)
        monkeypatch.setattr(torch.cuda, "Event", CudaEvent)
        monkeypatch.setattr(torch.cuda, "stream", lambda _: nullcontext())
        monkeypatch.setattr(torch.cuda, "current_stream", lambda _: "the step's")


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.filterwarnings("ignore")
def test_copies_on_a_device_are_waited_for_on_mapped_memory(
    monkeypatch: pytest.MonkeyPatch, *, fails: bool
) -> None:
    """The executor waits for the device before the last view is dropped, also if a copy failed."""
    memory, card = OneUse(), Card()
    cuda = CudaObjects(monkeypatch, lambda: memory.slots() is not None)
    monkeypatch.setattr(cuda_driver, "_load", lambda: client_driver(card))

    def copy(memory: OneUse, transfer: BlockTransfer, **_: object) -> int:
        view = memory.extent_tensor(0)[transfer.block_ids[0]]
        cuda.calls.append("copy")
        if fails:
            raise RuntimeError("CUDA error")
        return int(view.numel())

    copier = SimpleNamespace(device=torch.device("cuda:3"), load=copy, save=copy)
    executor = PlanExecutor(copier)  # type: ignore[arg-type]
    plan = StepPlan("e", load_async=False, loads=[BlockTransfer(1, "r", (2,), (DatedRun(0, [0]),))])
    executor.load(plan, memory)
    assert cuda.seen == [True]
    assert cuda.calls == [
        "record on the step",
        "wait for the step",
        "record on the copies",
        "copy",
        "record on the copies",
        "synchronize",
    ]
    # The log that pytest keeps refers to the frames of an error.
    assert fails or memory.slots() is None
    assert executor.take_report().failed == ({1} if fails else set())
    assert executor.counts["load_microseconds"] == (0 if fails else 1500)
    # The threads that copy do not break the capture of a graph either.
    for direction in (executor._loads, executor._saves):
        thread = direction._thread.submit(get_ident)
        assert thread.result() in card.relaxed
    executor.close()


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("queue", [CpuQueue, StandInQueue], ids=["cpu", "stand-in"])
@pytest.mark.parametrize("check", [*COPY_CHECKS, *BESIDE_CHECKS], ids=lambda each: each.__name__)
def test_blocks_are_copied(
    check: Check,
    queue: Callable[[], StepQueue],
    layout: Layout,
) -> None:
    """Bytes survive, in the order of the step, of its loads and of its saves."""
    check(layout, queue(), "cpu")


@pytest.mark.filterwarnings("ignore")
def test_a_save_beside_a_step_that_fails_is_reported() -> None:
    """A failed save on a device is reported as failed, and nothing waits for it."""
    blocks = LAYOUTS["block first"](8, BLOCK, "cpu")
    with StandInQueue().executor(blocks.planes) as executor:
        plan = StepPlan("engine", saves=[BlockTransfer(2, "s", (5,), (DatedRun(9, [3]),))])
        executor.save(plan, Memory())
        executor.wait_for_saves({"s"})
        assert executor.take_finished() == (set(), set())
        assert executor.take_report().failed == {2}


@pytest.mark.parametrize("queue", [CpuQueue, StandInQueue], ids=["cpu", "stand-in"])
def test_rates_are_those_of_whole_transfers(queue: Callable[[], StepQueue]) -> None:
    """The rates of both directions are measured. tests/gpu prints those of a device."""
    found = rates(LAYOUTS["block first"], queue(), slots(64, 1 << 16, "cpu"))
    assert min(found) > 0


def test_slots_are_registered_as_a_store_s_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """The registered memory that tests/gpu copies to has the store's seals and one registration."""
    card = Card()
    monkeypatch.setattr(cuda_driver, "_load", lambda: client_driver(card))
    host_registrar.cache_clear()
    made = slots(3, 4096, "registered")
    host_registrar.cache_clear()
    assert card.registered == {made.tensor.data_ptr(): 3 * 4096}
    assert not made.tensor.any()


@pytest.mark.parametrize("to_blocks", [True, False], ids=["load", "save"])
def test_a_cpu_has_no_peak_of_a_device(*, to_blocks: bool) -> None:
    """The measure that tests/gpu uses is zero without a device."""
    layout = LAYOUTS["layer first"]
    assert peak_of(layout, StandInQueue(), 16, 4096, to_blocks=to_blocks) == 0
