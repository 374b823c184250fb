"""The messages between the scheduler and the ranks, in vLLM's own envelopes."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorWorkerMetadata
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import (
    OffloadingConnectorMetadata,
    OffloadingWorkerMetadata,
)
from vllm.v1.kv_offload.base import LoadStoreSpec

from kvstore_client import DatedRun, NamespaceIdentity, PageLayout


@dataclass
class StorePages(LoadStoreSpec):
    """Pages of the store that ranks copy from or to, in the order of vLLM's keys.

    ``number`` names the copy in reports of failures. None for ``runs``: the pages are not held,
    so nothing is copied and the copy fails.
    """

    number: int
    request_id: str
    runs: Sequence[DatedRun] | None


@dataclass
class LeaseToJoin:
    """The data by which a rank of another process joins the lease. ``lease`` is secret."""

    lease: bytes
    identity: NamespaceIdentity
    layout: PageLayout


@dataclass
class OffloadStep(OffloadingConnectorMetadata):
    """A step of vLLM's connector, and the ranks' way to the store.

    ``reset_count`` counts resets of the cache. ``idle`` is True if the step computes nothing.
    ``weight_changes`` counts the changes of the ranks' weights that the plan knows of.
    """

    join: LeaseToJoin | None = None
    reset_count: int = 0
    idle: bool = False
    weight_changes: int = 0


@dataclass
class OffloadReport(OffloadingWorkerMetadata):
    """The report of vLLM's worker at one rank, or several ranks' reports summed up.

    ``failed`` are the numbers of copies that failed at one rank or more, and ``failed_loads`` the
    requests whose loads within a step did. ``joined`` counts the ranks that joined each lease.
    ``flushed`` has, by rank, the latest reset before which all its copies have ended. ``faults``
    counts loads that failed on purpose, in tests. ``weight_changes`` is the largest count of
    changes of a rank's weights.
    """

    failed: set[int] = field(default_factory=set)
    joined: Counter[bytes] = field(default_factory=Counter)
    flushed: dict[int, int] = field(default_factory=dict)
    faults: int = 0
    weight_changes: int = 0
    failed_loads: set[str] = field(default_factory=set)

    def aggregate(self, other: KVConnectorWorkerMetadata) -> "OffloadReport":
        """Returns this report and another rank's as one."""
        assert isinstance(other, OffloadReport)
        base = super().aggregate(other)
        return OffloadReport(
            base.completed_jobs,
            base.transfer_stats,
            self.failed | other.failed,
            self.joined + other.joined,
            latest_flushes(self.flushed, other.flushed),
            self.faults + other.faults,
            max(self.weight_changes, other.weight_changes),
            self.failed_loads | other.failed_loads,
        )


def latest_flushes(flushed: Mapping[int, int], other: Mapping[int, int]) -> dict[int, int]:
    """Returns the latest reset of each rank of two reports."""
    ranks = flushed.keys() | other.keys()
    return {rank: max(flushed.get(rank, 0), other.get(rank, 0)) for rank in ranks}
