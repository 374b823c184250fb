"""A world of the core's tests whose cache has a journal, every call witnessed."""

from collections.abc import Callable

from core.core_builders import CoreWorld, Worker
from kvstore.core.cache import PrefixCache
from kvstore.core.pool.tier_policy import TierPolicy
from kvstore.core.recovery.recover import Recovered
from recoveries.witness import Witness


class JournaledWorld(CoreWorld):
    """A world that can be recovered."""

    witness: Witness

    def __init__(
        self,
        *,
        slots: int = 8,
        page_stores: int = 0,
        divides_by_token: bool = False,
        tier_policy: TierPolicy | None = None,
    ) -> None:
        super().__init__(
            slots=slots,
            page_stores=page_stores,
            divides_by_token=divides_by_token,
            lower_slots=8,
            tier_policy=tier_policy,
            journal_of=self._watch,
        )

    def _watch(self, cache: PrefixCache, make: Callable[[], PrefixCache]) -> None:
        self.witness = Witness(cache, make)

    def recover(self) -> Recovered:
        """Recovers from all that was written."""
        return self.witness.recover(self.now)

    def restart(self) -> Recovered:
        """Goes on with the recovered cache, before any process attached to it."""
        recovered = self.recover()
        recovered.go_on(self.witness.memory)
        self.cache = recovered.cache
        self.worker.cache = recovered.cache
        return recovered

    def attach(self, worker: Worker) -> None:
        """Attaches a worker's process again, which has all memory mapped."""
        self.cache.bind(worker.caller, process_id=worker.process_id, pid=1, uid=1)
        self.cache.acknowledge(worker.process_id, self.cache.extents_owed(worker.process_id))
