"""Request rates: how much each tenant asks for, and whether that is above its quota."""

from collections import OrderedDict
from threading import Lock
from typing import NamedTuple

from kvstore.core import QuotaTable
from kvstore.errors import QuotaExceeded
from kvstore.service.clock import Clock

# The number of tenants with counts. The one with the oldest request is dropped first.
MAX_TENANTS = 10_000
# Seconds of tolerance: a client that waited as long as requested is not refused for a rounding of
# the clock.
ROUNDING = 1e-9


class TooManyRequests(QuotaExceeded):
    """The tenant asked for more than its quota; ``retry_after_s`` says when to ask again."""

    def __init__(self, *, quota: str, maximum: float, retry_after_s: float) -> None:
        super().__init__(quota=quota, maximum=f"{maximum:g}")
        self.retry_after_s = retry_after_s


class Requests(NamedTuple):
    """Requests of a tenant: all, and those that were refused."""

    request_count: int
    refused_count: int


class TokenBucket:
    """A rate in requests a second that allows short bursts. Not thread-safe.

    It holds the requests of one second, at least one. Each request takes one.
    """

    def __init__(self, rate: float, now: float) -> None:
        self._rate = rate
        self._size = max(rate, 1.0)
        self._left = self._size
        self._filled_at = now

    def wait(self, now: float) -> float:
        """Returns the seconds until a request is allowed; zero if it is allowed now."""
        self._left = min(self._left + (now - self._filled_at) * self._rate, self._size)
        self._filled_at = now
        wait = (1.0 - self._left) / self._rate
        return wait if wait > ROUNDING else 0.0

    def take(self) -> None:
        """Takes a request, also from an empty bucket. The debt is at most the bucket's size."""
        self._left = max(self._left - 1.0, -self._size)


class _Tenant:
    """The requests and the bucket of one tenant."""

    __slots__ = ("bucket", "count", "refused_count")

    def __init__(self, bucket: TokenBucket | None) -> None:
        self.bucket = bucket
        self.count = 0
        self.refused_count = 0


class Traffic:
    """Counts requests by tenant and refuses those over the rate. Thread-safe; never waits."""

    def __init__(self, quotas: QuotaTable, clock: Clock, *, max_tenants: int = MAX_TENANTS) -> None:
        self._quotas = quotas
        self._clock = clock
        self._max_tenants = max_tenants
        self._mutex = Lock()
        self._tenants: OrderedDict[str, _Tenant] = OrderedDict()

    def admit(self, tenant: str, *, always: bool = False) -> None:
        """Counts a request, or raises :class:`TooManyRequests`.

        A request that frees something is always admitted (``always``). It counts, so it delays
        requests that take.
        """
        with self._mutex:
            known = self._tenants.get(tenant) or self._begin(tenant)
            self._tenants.move_to_end(tenant)
            known.count += 1
            if known.bucket is None:
                return
            wait = known.bucket.wait(self._clock())
            if wait == 0 or always:
                known.bucket.take()
                return
            known.refused_count += 1
        rate = self._quotas.of(tenant).requests_per_second or 0.0
        raise TooManyRequests(quota="requests_per_second", maximum=rate, retry_after_s=wait)

    def refused(self, tenant: str) -> None:
        """Counts a request that was refused earlier."""
        with self._mutex:
            known = self._tenants.get(tenant) or self._begin(tenant)
            self._tenants.move_to_end(tenant)
            known.count += 1
            known.refused_count += 1

    def requests(self, tenant: str) -> Requests:
        """Returns the counts of a tenant's requests since the start."""
        with self._mutex:
            known = self._tenants.get(tenant)
            return Requests(0, 0) if known is None else Requests(known.count, known.refused_count)

    def change_rates(self, quotas: QuotaTable) -> None:
        """Applies new rates from now on; a tenant whose rate changes begins with a full bucket."""
        with self._mutex:
            before, self._quotas = self._quotas, quotas
            for tenant, known in self._tenants.items():
                rate = quotas.of(tenant).requests_per_second
                if rate != before.of(tenant).requests_per_second:
                    known.bucket = self._bucket(rate)

    def _bucket(self, rate: float | None) -> TokenBucket | None:
        return None if rate is None else TokenBucket(rate, self._clock())

    def all_requests(self) -> dict[str, Requests]:
        """Returns each remembered tenant's request counts since the start."""
        with self._mutex:
            tenants = list(self._tenants.items())
        return {name: Requests(each.count, each.refused_count) for name, each in tenants}

    def _begin(self, tenant: str) -> _Tenant:
        bucket = self._bucket(self._quotas.of(tenant).requests_per_second)
        known = self._tenants[tenant] = _Tenant(bucket)
        if len(self._tenants) > self._max_tenants:
            self._tenants.popitem(last=False)
        return known
