"""Planned transfers that not every rank has ended yet."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count

from kvstore_client import DatedRun
from kvstore_vllm.step_plan import BlockTransfer, WorkerReport


@dataclass(slots=True)
class _Open:
    ranks_left: int
    done: Callable[[bool], None]
    failed: bool = False


class Jobs:
    """Numbers transfers, and calls each one's callback when all ranks ended it.

    Until then the ranks may read or write the slots. One thread uses it.
    """

    def __init__(self, rank_count: int) -> None:
        self._rank_count = rank_count
        self._numbers = count(1)
        self._open: dict[int, _Open] = {}

    def __len__(self) -> int:
        return len(self._open)

    def begin(
        self,
        request_id: str,
        block_ids: Sequence[int],
        runs: tuple[DatedRun, ...],
        done: Callable[[bool], None],
    ) -> BlockTransfer:
        """Returns a new transfer. ``done`` is called once: True if it succeeded at all ranks."""
        number = next(self._numbers)
        self._open[number] = _Open(self._rank_count, done)
        return BlockTransfer(number, request_id, tuple(block_ids), runs)

    def report(self, report: WorkerReport) -> None:
        """Counts the jobs that ranks ended."""
        for number, rank_count in sorted(report.ended.items()):
            job = self._open[number]
            job.ranks_left -= rank_count
            job.failed |= number in report.failed
            if job.ranks_left <= 0:
                del self._open[number]
                job.done(not job.failed)
