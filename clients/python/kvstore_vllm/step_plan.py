"""The messages between the scheduler half and the ranks: a step's plan, and its results."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from kvstore_client import DatedRun, NamespaceIdentity


@dataclass(frozen=True, slots=True)
class BlockTransfer:
    """Whole blocks and the slots to copy them to or from, in the same order.

    ``job`` names the transfer in the ranks' reports. Each rank reports it once.
    """

    job: int
    request_id: str
    block_ids: tuple[int, ...]
    runs: tuple[DatedRun, ...]

    @property
    def places(self) -> Iterable[tuple[int, int]]:
        """The extent and slot of each block."""
        return ((run.extent_id, slot) for run in self.runs for slot in run.slots)


@dataclass(slots=True)
class StepPlan:
    """The transfers of one step, and the ranks' way to the store.

    A rank in the scheduler's process finds the store by ``engine_id``. Other ranks use
    ``lease``, which is secret, and the ``identity`` of its pages. ``let_go`` are ended requests
    whose blocks are no longer read. ``preempted`` are requests whose blocks this step may
    overwrite. ``idle`` is True if the step computes nothing. ``weight_changes`` counts the changes
    of the ranks' weights that the plan knows of.
    """

    engine_id: str
    lease: bytes | None = None
    identity: NamespaceIdentity | None = None
    load_async: bool = True
    idle: bool = False
    weight_changes: int = 0
    loads: list[BlockTransfer] = field(default_factory=list)
    saves: list[BlockTransfer] = field(default_factory=list)
    let_go: set[str] = field(default_factory=set)
    preempted: set[str] = field(default_factory=set)


@dataclass(slots=True)
class WorkerReport:
    """The results of one rank, or the sum of several ranks' results.

    ``ended`` counts the ranks that ended each job. ``failed`` are the jobs that failed at one
    rank or more. ``joined`` counts the ranks that joined each lease. ``disagrees`` is True if
    a rank's block layout differs from the scheduler half's. ``weight_changes`` is the largest
    count of changes of a rank's weights.
    """

    ended: Counter[int] = field(default_factory=Counter)
    failed: set[int] = field(default_factory=set)
    joined: Counter[bytes] = field(default_factory=Counter)
    disagrees: bool = False
    weight_changes: int = 0

    def __bool__(self) -> bool:
        return bool(self.ended or self.joined or self.disagrees or self.weight_changes)

    def add(self, other: "WorkerReport") -> None:
        """Adds the report of another rank, or of a later step."""
        self.ended.update(other.ended)
        self.failed |= other.failed
        self.joined.update(other.joined)
        self.disagrees |= other.disagrees
        self.weight_changes = max(self.weight_changes, other.weight_changes)


def runs_between(runs: Sequence[DatedRun], start: int, stop: int) -> tuple[DatedRun, ...]:
    """Returns the runs of pages ``start`` to ``stop``, counted over all ``runs`` in order."""
    found, first = [], 0
    for run in runs:
        count = len(run.slots)
        begin, end = max(start - first, 0), min(stop - first, count)
        if begin < end:
            found.append(DatedRun(run.extent_id, run.slots[begin:end], run.generations[begin:end]))
        first += count
    return tuple(found)
