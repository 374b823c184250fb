"""An engine's attachment to its store: whether the store answers, and which ranks reach it."""

import logging
from collections import Counter
from collections.abc import Mapping
from typing import Final

from kvstore_client.engines.store_access import StoreAccess
from kvstore_client.engines.usage_log import UsageLog
from kvstore_vllm.engine.store_access import ENGINES_HERE
from kvstore_vllm.scheduler.rank_joining import Joining

_logger = logging.getLogger(__name__)

# Seconds that a step waits if it computes nothing while the store or ranks are about to join.
ATTACH_WAIT: Final = 0.001


class StoreAttachment:
    """The client of an engine's scheduler, and the ranks that join its lease.

    A rank of this process uses the client itself. The scheduler's thread uses it.
    """

    def __init__(
        self, access: StoreAccess, engine_id: str, rank_count: int, counts: "Counter[str]"
    ) -> None:
        """``counts`` gets the state for Prometheus."""
        self.access = access
        self._engine_id = engine_id
        self._joining = Joining(0 if ENGINES_HERE.has_rank(engine_id) else rank_count)
        self._off = False
        self._usage = UsageLog(access.facts, counts)
        ENGINES_HERE.put(engine_id, access)

    @property
    def tells_ranks(self) -> bool:
        """True if ranks in other processes need the lease."""
        return self._joining.tells_ranks

    def share(self) -> bytes | None:
        """Returns the lease that the ranks get with the next step; None if there is none."""
        lease = self._lease
        self._joining.shared(lease)
        return lease

    def joined(self, counts: Mapping[bytes, int]) -> None:
        """Takes how many ranks newly joined each lease."""
        self._joining.came(counts)

    def turn_off(self, reason: str) -> None:
        """Uses the store no more, for example if a rank disagrees on the layout of pages."""
        if not self._off:
            self._off = True
            _logger.error("kvstore_turned_off", extra={"reason": reason})

    def usable(self) -> bool:
        """Returns whether the store answers and every rank has joined the lease."""
        if self._off or not self.access.usable:
            return False
        return self._joining.complete(self._lease)

    def prefetches(self) -> bool:
        """Returns whether the store loads pages ahead of lookups, because it has slower tiers."""
        return not self._off and self.access.memory.can_prefetch

    def is_joining(self) -> bool:
        """Returns whether the store or ranks are still about to join."""
        if self._off:
            return False
        # In this order: if the store is attached between the two calls, it answers in the second.
        tried = self.access.tried
        return self._joining.waits(answers=self.access.usable, tried=tried, lease=self._lease)

    def begin_step(self, *, idle: bool) -> None:
        """Logs each change of whether the store is used; an idle step waits for it to join."""
        self._say_whether_usable()
        if idle and self.is_joining():
            self.access.memory.wait_open(ATTACH_WAIT)

    def close(self) -> None:
        """Gives the lease back."""
        self.access.close()
        ENGINES_HERE.remove(self._engine_id)

    @property
    def _lease(self) -> bytes | None:
        """The lease that the ranks join; None if they share the client or no lease exists."""
        return self.access.share_lease() if self._joining.tells_ranks else None

    def _say_whether_usable(self) -> None:
        usable = self.usable()
        if not self.is_joining():
            self._usage.note(usable=usable)
