"""Copies of a CPU that run beside later steps, as a GPU's do, and end as late as they may."""

from collections.abc import Callable, Collection
from threading import Condition
from typing import Any

import torch

from kvstore_vllm.blocks.block_copier import Plane
from kvstore_vllm.blocks.descriptor_copier import DescriptorCopier, submit_to_cpu
from kvstore_vllm.rank import plan_executor, rank_role
from kvstore_vllm.rank.plan_executor import PlanExecutor
from kvstore_vllm.rank.transfer_stream import HostStream, Timed

# Steps that an engine makes before a copy begins. The blocks' requests may have ended by then.
STEPS = 100


class _Steps:
    """The number of steps so far. While ``hurried`` no copy waits for one."""

    def __init__(self) -> None:
        self.news = Condition()
        self.count = 0
        self.hurried = False

    def change(self, *, count: int = 0, hurried: bool = False) -> None:
        """Notes steps, or that a step waits for copies."""
        with self.news:
            self.count += count
            self.hurried = hurried
            self.news.notify_all()


class _LateStream:
    """Copies some steps after the one that asks for it."""

    def __init__(self, steps: _Steps) -> None:
        self._steps = steps

    def mark(self) -> int:
        """Returns the number of steps so far."""
        return self._steps.count

    def run(self, ready: int | None, copy: Callable[[], int]) -> Timed:
        """Waits for steps after ``ready``, and copies."""
        begin = (ready or 0) + STEPS
        with self._steps.news:
            self._steps.news.wait_for(lambda: self._steps.hurried or self._steps.count >= begin)
        return HostStream().run(None, copy)


def save_late() -> None:
    """Makes this process's ranks copy by address, on the executor's own threads, and late."""
    steps = _Steps()
    finished, wait, close = (
        PlanExecutor.take_finished,
        PlanExecutor.wait_for_saves,
        PlanExecutor.close,
    )

    def take_finished(self: PlanExecutor) -> tuple[set[str], set[str]]:
        steps.change(count=1)
        return finished(self)

    def wait_for_saves(self: PlanExecutor, request_ids: Collection[str]) -> None:
        steps.change(hurried=bool(request_ids))
        wait(self, request_ids)
        steps.change()

    def end(self: PlanExecutor) -> None:
        steps.change(hurried=True)
        close(self)

    def copier(planes: list[Plane], rank: int = 0) -> DescriptorCopier:
        made = DescriptorCopier(planes, submit_to_cpu, rank)
        made.device = torch.device("cuda:0")  # by its name alone the executor copies beside steps
        return made

    stand_ins: list[tuple[Any, str, Any]] = [
        (PlanExecutor, "take_finished", take_finished),
        (PlanExecutor, "wait_for_saves", wait_for_saves),
        (PlanExecutor, "close", end),
        (plan_executor, "DeviceStream", lambda _: _LateStream(steps)),
        (rank_role, "BlockCopier", copier),
    ]
    for owner, name, stand_in in stand_ins:
        setattr(owner, name, stand_in)
