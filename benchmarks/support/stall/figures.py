"""The cost of a stall, from the time of each request."""

from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any, NamedTuple

from support.stall.probe import Look

SERVING = "SERVING"
# The stall delayed a request that waited at least this share of a call's deadline.
WAITED_SHARE = 0.1


class Request(NamedTuple):
    """One request of one worker; times in seconds on the machine's monotonic clock."""

    kind: str
    worker: str
    begin: float
    end: float
    use_store: bool
    hit: bool
    wrong: bool
    store_s: float

    @property
    def seconds(self) -> float:
        """The time that the request took."""
        return self.end - self.begin


class Stall(NamedTuple):
    """The times at which the server was stopped and continued."""

    begin: float
    end: float

    def overlaps(self, request: Request) -> bool:
        """Returns whether any part of a request was within."""
        return request.begin < self.end and request.end > self.begin


def cost_of(
    kind: str, requests: Iterable[Request], stall: Stall, *, call_timeout: float
) -> dict[str, Any]:
    """Returns the stall's cost for one kind of worker with requests within.

    A request's time is compared with the median of those without the store at the same time, if any
    exist. Those computed the same, under the same load. Raises ``ValueError`` if nothing can be
    compared.
    """
    mine = [each for each in requests if each.kind == kind]
    during = [each for each in mine if stall.overlaps(each)]
    without = [each for each in mine if not each.use_store]
    alone = [each.seconds for each in without if stall.overlaps(each)]
    alone = alone or [each.seconds for each in without]
    using = [each for each in during if each.use_store]
    if not using or not alone:
        raise ValueError(f"no requests of {kind} workers during the stall")
    baseline = median(alone)
    added = [each.seconds - baseline for each in using]
    return {
        "kind": kind,
        "requests": len(using),
        "waited": sum(each.store_s > WAITED_SHARE * call_timeout for each in using),
        "largest_added_s": _rounded(max(added)),
        "median_added_s": _rounded(median(added)),
        "largest_store_s": _rounded(max(each.store_s for each in using)),
        "median_store_s": _rounded(median(each.store_s for each in using)),
        "without_store": {
            "requests": len(alone),
            "median_s": _rounded(baseline),
            "largest_over_median_s": _rounded(max(alone) - baseline),
        },
    }


def hits_after(requests: Iterable[Request], stall: Stall) -> list[float]:
    """Returns, for each worker, the seconds from the stall's end to the end of its first hit."""
    first: dict[str, float] = {}
    for each in sorted(requests, key=lambda request: request.end):
        if each.hit and each.end > stall.end:
            first.setdefault(each.worker, each.end - stall.end)
    return sorted(first.values())


def health_of_stall(looks: Sequence[Look], stall: Stall) -> dict[str, Any]:
    """Returns when probes saw the stall and its end, or None if none saw it."""
    silent = [each for each in looks if each.end > stall.begin and each.said != SERVING]
    back = [each for each in looks if each.begin >= stall.end and each.said == SERVING]
    return {
        "not_serving_after_s": _rounded(silent[0].end - stall.begin) if silent else None,
        "serving_after_s": _rounded(back[0].end - stall.end) if back else None,
        "said": sorted({each.said for each in looks if each.end > stall.begin}),
    }


def _rounded(seconds: float) -> float:
    return round(seconds, 4)
