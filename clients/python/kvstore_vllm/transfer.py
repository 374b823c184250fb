"""What the scheduler half tells the ranks in a step, and what they answer."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from kvstore_client import DatedRun, NamespaceIdentity


@dataclass(frozen=True, slots=True)
class Transfer:
    """Whole blocks and the slots that they go to, or come from, in the same order.

    ``job`` names it in the ranks' answers; each rank answers once.
    """

    job: int
    request_id: str
    block_ids: tuple[int, ...]
    runs: tuple[DatedRun, ...]

    @property
    def places(self) -> Iterable[tuple[int, int]]:
        """Extent and slot of each block."""
        return ((run.extent_id, slot) for run in self.runs for slot in run.slots)


@dataclass(slots=True)
class StepPlan:
    """The transfers of one step, and where the store is.

    ``engine_id`` finds the store where scheduler and rank share a process; where they do not,
    ``lease``, which is secret, and the ``identity`` of its pages do. ``let_go`` are ended
    requests whose blocks nobody reads any more. ``idle``: the step computes nothing.
    """

    engine_id: str
    lease: bytes | None = None
    identity: NamespaceIdentity | None = None
    load_async: bool = True
    idle: bool = False
    loads: list[Transfer] = field(default_factory=list)
    saves: list[Transfer] = field(default_factory=list)
    let_go: set[str] = field(default_factory=set)


@dataclass(slots=True)
class WorkerReport:
    """What ended at one rank, or, summed up, at several: jobs by how many ranks ended them.

    ``failed`` are the jobs that failed at one of them at least. ``joined`` counts the ranks
    that joined a lease; ``disagrees`` says that a rank's blocks are laid out otherwise than
    the scheduler half believes.
    """

    ended: Counter[int] = field(default_factory=Counter)
    failed: set[int] = field(default_factory=set)
    joined: Counter[bytes] = field(default_factory=Counter)
    disagrees: bool = False

    def __bool__(self) -> bool:
        return bool(self.ended or self.joined or self.disagrees)

    def add(self, other: "WorkerReport") -> None:
        """Takes in what another rank, or a later step, reports."""
        self.ended.update(other.ended)
        self.failed |= other.failed
        self.joined.update(other.joined)
        self.disagrees |= other.disagrees


def runs_between(runs: Sequence[DatedRun], start: int, stop: int) -> tuple[DatedRun, ...]:
    """Returns the runs of pages ``start`` to ``stop`` of those that ``runs`` name in order."""
    found, first = [], 0
    for run in runs:
        count = len(run.slots)
        begin, end = max(start - first, 0), min(stop - first, count)
        if begin < end:
            found.append(DatedRun(run.extent_id, run.slots[begin:end], run.generations[begin:end]))
        first += count
    return tuple(found)
