"""The cycle of calls that a caller repeats, and the time of each call."""

import time
from array import array
from collections import defaultdict
from collections.abc import Callable
from typing import Protocol, TypeVar

from support.rpc.worker import PAGE_TOKENS, Worker, page_count

T = TypeVar("T")

# Prompts of different callers differ from this token on.
CALLER_STRIDE = 1 << 24
# Above every token of a shared prompt.
OWN_TOKENS = 1 << 28


class Recorder:
    """Times of calls by name, in nanoseconds of ``clock``, and the number of calls."""

    def __init__(self, clock: Callable[[], int] = time.perf_counter_ns) -> None:
        self.times: dict[str, list[int]] = defaultdict(list)
        self.call_count = 0
        self._clock = clock

    def call(self, name: str, function: Callable[..., T], *args: object) -> T:
        """Makes a call and records it. Without a name it is counted only."""
        began = self._clock()
        answer = function(*args)
        took = self._clock() - began
        self.call_count += 1
        if name:
            self.times[name].append(took)
        return answer


class Cycle(Protocol):
    """Some calls that leave the store unchanged."""

    def run(self, recorder: Recorder) -> None:
        """Makes the calls once."""
        ...


def cycle_of(worker: Worker, token_count: int, caller_number: int) -> Cycle:
    """Returns the cycle for prompts of this length. With 0 its calls do nothing."""
    if token_count == 0:
        return EmptyCycle(worker)
    return PromptCycle(worker, token_count, caller_number)


def prompt_of(token_count: int) -> bytes:
    """Returns the prompt of this length that all callers share, packed."""
    return array("I", range(token_count, 2 * token_count)).tobytes()


def publish_prompt(worker: Worker, token_count: int) -> None:
    """Caches the whole pages of the shared prompt of this length."""
    prompt = prompt_of(token_count)
    pin_id, reservation_id, _ = worker.acquire(prompt)
    worker.insert(reservation_id, prompt[: page_count(prompt) * PAGE_TOKENS * 4], 0, 0)
    worker.abort(reservation_id)
    worker.release(pin_id)


class EmptyCycle:
    """Calls that do nothing, for the cost of gRPC and of passing a request."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def run(self, recorder: Recorder) -> None:
        """Calls once each."""
        recorder.call("health", self._worker.health)
        recorder.call("empty", self._worker.release)


class PromptCycle:
    """A worker's requests for prompts of ``token_count`` tokens, a multiple of two pages.

    It matches the shared prompt and releases it. Then it acquires a prompt whose first half is the
    shared one's and whose second half is its own, and inserts that half. At the end it gives all of
    it back, which is counted and not timed.
    """

    def __init__(self, worker: Worker, token_count: int, caller_number: int) -> None:
        self._worker = worker
        self._prompt = prompt_of(token_count)
        # A match leaves one token to run.
        self._covered = min(token_count - 1, token_count // PAGE_TOKENS * PAGE_TOKENS)
        self._half = token_count // PAGE_TOKENS // 2 * PAGE_TOKENS
        first = OWN_TOKENS + caller_number * CALLER_STRIDE
        own_count = token_count // PAGE_TOKENS * PAGE_TOKENS - self._half
        self._own = array("I", range(first, first + own_count)).tobytes()
        self._second = self._prompt[: self._half * 4] + self._own
        self._first_own_page = self._second[: (self._half + PAGE_TOKENS) * 4]

    def _hit(self) -> int:
        """Acquires a prompt that is cached whole and releases it. Returns the reservation."""
        pin_id, reservation_id, _ = self._worker.acquire(self._prompt)
        self._worker.release(pin_id, reservation_id + 1)
        return reservation_id

    def run(self, recorder: Recorder) -> None:
        """Makes one cycle. Raises ``AssertionError`` for a wrong answer."""
        call, worker = recorder.call, self._worker
        pin_ids, covered = call("match", worker.match, self._prompt)
        assert covered == self._covered, covered
        call("release", worker.release, *pin_ids)
        call("", worker.abort, call("hit", self._hit))
        pin_id, reservation_id, granted = call("acquire", worker.acquire, self._second)
        assert granted == page_count(self._own), granted
        published = call("insert", worker.insert, reservation_id, self._own, self._half, pin_id)
        assert published == granted, published
        call("", worker.abort, reservation_id)
        call("", worker.release, pin_id)
        call("", worker.evict, self._first_own_page)
