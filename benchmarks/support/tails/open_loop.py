"""One caller of tails.py, whose calls begin at fixed times."""

import time
from collections import defaultdict
from collections.abc import Callable, Generator
from functools import partial
from typing import Any, NamedTuple

from support.rpc.cycle import prompt_of
from support.rpc.worker import PAGE_TOKENS, Worker
from support.tails.namespaces import fresh_prompts

# Tokens of the prompt that all callers share, and pages that each insert adds to half of it.
TOKENS, NEW_PAGES = 2_048, 4
HALF = TOKENS // 2
# The calls that are measured. The others give back what these took.
MEASURED = ("match", "acquire", "insert")

_Call = tuple[str, Callable[[], Any]]


class Latencies(NamedTuple):
    """Seconds of each call by its name, from its time in the schedule and from its sending.

    ``refused`` counts acquires that got no slots. ``cores`` are the processors that the store used
    on average, one for each slice.
    """

    scheduled: dict[str, list[float]]
    sent: dict[str, list[float]]
    refused: int
    cores: tuple[float, ...] = ()


class OpenLoop:
    """The calls of one caller. ``source`` tells its prompts from those of all others."""

    def __init__(self, worker: Worker, source: int) -> None:
        self._worker = worker
        self._prompt = prompt_of(TOKENS)
        self._fresh = fresh_prompts(source, NEW_PAGES)
        self._refused = 0
        self._calls = self._cycle()
        self._next = next(self._calls)

    def run(self, begin: float, seconds: float, period: float) -> Latencies:
        """Makes a call at ``begin``, by the monotonic clock, and then one each ``period``.

        A call that is late delays the next ones, whose latency counts from their own time.
        """
        scheduled: dict[str, list[float]] = defaultdict(list)
        sent: dict[str, list[float]] = defaultdict(list)
        self._refused = 0
        clock = time.monotonic
        for number in range(int(seconds / period)):
            due = begin + number * period
            wait = due - clock()
            if wait > 0:
                time.sleep(wait)
            name, call = self._next
            began = clock()
            answer = call()
            ended = clock()
            if name in MEASURED:
                scheduled[name].append(ended - due)
                sent[name].append(ended - began)
            self._next = self._calls.send(answer)
        return Latencies(dict(scheduled), dict(sent), self._refused)

    def _cycle(self) -> Generator[_Call, Any, None]:
        """Yields one call after another, and is sent the answer of each."""
        worker, shared = self._worker, self._prompt[: HALF * 4]
        for own in self._fresh:
            pin_ids, covered = yield "match", partial(worker.match, self._prompt)
            assert covered == TOKENS - 1, covered
            pin_id, reservation_id, count = yield "acquire", partial(worker.acquire, shared + own)
            if count == len(own) // 4 // PAGE_TOKENS:
                yield "insert", partial(worker.insert, reservation_id, own, HALF, pin_id)
            else:
                self._refused += 1
            yield "abort", partial(worker.abort, reservation_id)
            yield "release", partial(worker.release, pin_id, *pin_ids)
