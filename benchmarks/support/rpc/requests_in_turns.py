"""Whole requests of one caller over a lane, at stores that take turns."""

import time
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from statistics import median, quantiles

from kvstore_client.testing import RunningStore
from support.rpc.worker import PAGE_BYTES, PAGE_TOKENS, Worker, attached_worker, page_count

TOKENS = 1_024
# Tokens of each prompt that all prompts begin with.
SHARED = 512
# Room for some prompts, so that each request evicts the pages of an earlier one.
SLOTS = 8 * TOKENS // PAGE_TOKENS
STORE_BYTES = SLOTS * PAGE_BYTES
CALLS = ("acquire", "insert", "give back", "request")
METHOD = {
    "tokens": TOKENS,
    "shared_tokens": SHARED,
    "pages_inserted_and_evicted": (TOKENS - SHARED) // PAGE_TOKENS,
    "times": "of one caller over a lane, in seconds of the clock",
}


class Requests:
    """Requests of one store: a part of each prompt is cached, the rest is inserted."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._fresh = count(1 << 20, TOKENS)

    def run(self, seconds: float) -> dict[str, list[float]]:
        """Makes requests for a while; returns the seconds of each call, and of all together."""
        times: dict[str, list[float]] = {name: [] for name in CALLS}
        end = time.perf_counter() + seconds
        while not times["request"] or time.perf_counter() < end:
            took = self._request()
            for name, each in zip(CALLS, (*took, sum(took)), strict=True):
                times[name].append(each)
        return times

    def _request(self) -> tuple[float, float, float]:
        first = next(self._fresh)
        shared, own = range(SHARED), range(first, first + TOKENS - SHARED + 1)
        tokens = array("I", (*shared, *own)).tobytes()
        began = time.perf_counter()
        pin_id, reservation_id, answer = self._worker.acquired(tokens)
        acquired = time.perf_counter()
        known = answer.match.matched_token_count
        end = page_count(tokens) * PAGE_TOKENS
        self._worker.insert(
            reservation_id, tokens[4 * known : 4 * end], known, pin_id if known else 0
        )
        inserted = time.perf_counter()
        self._worker.abort(reservation_id)
        self._worker.release(pin_id, pin_id + 2)
        return acquired - began, inserted - acquired, time.perf_counter() - inserted


@contextmanager
def requests_of(store: RunningStore) -> Iterator[Requests]:
    """Attaches a worker with a lane, whose first request gives the store pages."""
    with attached_worker(store.runtime_dir, hot_lane=True) as worker:
        requests = Requests(worker)
        requests.run(0)
        yield requests


def in_turns(
    ways: Mapping[str, Requests], rounds: int, seconds: float
) -> dict[str, dict[str, dict[str, float]]]:
    """Makes requests in each way in turns; returns the figures of each call, and of requests.

    Ratios are to the first way, round by round.
    """
    found: dict[str, list[dict[str, list[float]]]] = {name: [] for name in ways}
    names = list(ways)
    for number in range(rounds + 1):
        for turn in range(len(names)):
            name = names[(number + turn) % len(names)]
            times = ways[name].run(seconds)
            # The first round warms up.
            if number:
                found[name].append(times)
    return {
        call: _figures({name: [each[call] for each in of] for name, of in found.items()})
        for call in CALLS
    }


def _figures(rounds: Mapping[str, Sequence[Sequence[float]]]) -> dict[str, dict[str, float]]:
    """Returns a call's median each way, in microseconds, and its ratio to the first way."""
    medians = {name: [median(each) for each in of] for name, of in rounds.items()}
    first = next(iter(medians.values()))
    found = {}
    for name, of in medians.items():
        ratios = [a / b for a, b in zip(of, first, strict=True)]
        low, middle, high = quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
        found[name] = {
            "median_us": round(median(of) * 1e6, 1),
            "ratio": round(middle, 3),
            "ratio_q1": round(low, 3),
            "ratio_q3": round(high, 3),
        }
    return found
