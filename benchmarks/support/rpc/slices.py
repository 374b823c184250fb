"""Slices of a measurement, in which some callers repeat their cycles against one store."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from threading import Barrier, Event
from typing import NamedTuple, TypeVar

from support.machine import cpu_seconds
from support.rpc.cycle import Cycle, Recorder, cycle_of, publish_prompt
from support.rpc.local import TimedStore
from support.rpc.worker import Worker

T = TypeVar("T")

BARRIER_TIMEOUT = 60.0


class Slice(NamedTuple):
    """The results of one slice, with times in nanoseconds by call."""

    times: dict[str, list[int]]
    calls_per_second: float | None = None
    cpu_us_per_call: float | None = None


class ServedStore:
    """A store in a process of its own, and the workers attached to it."""

    def __init__(self, pid: int, workers: Sequence[Worker]) -> None:
        self._pid = pid
        self._workers = workers
        self._stopping = Event()
        self._threads = ThreadPoolExecutor(len(workers), thread_name_prefix="caller")

    def publish(self, token_counts: Iterable[int]) -> None:
        """Caches the shared prompts."""
        for token_count in token_counts:
            publish_prompt(self._workers[0], token_count)

    def measure(self, token_count: int, callers: int, seconds: float) -> Slice:
        """Runs cycles of the first ``callers`` workers concurrently, at least one each."""
        cycles = [
            cycle_of(worker, token_count, number)
            for number, worker in enumerate(self._workers[:callers])
        ]
        # This thread arrives last.
        gate = Barrier(callers + 1)
        futures = [self._threads.submit(self._call, each, gate, seconds) for each in cycles]
        before = cpu_seconds(self._pid)
        began = time.perf_counter()
        gate.wait(BARRIER_TIMEOUT)
        recorders = [each.result() for each in futures]
        took = time.perf_counter() - began
        calls = sum(each.call_count for each in recorders)
        spent = cpu_seconds(self._pid) - before
        names = recorders[0].times
        times = {
            name: list(chain.from_iterable(each.times[name] for each in recorders))
            for name in names
        }
        return Slice(times, calls / took, spent / calls * 1e6)

    def stop(self) -> None:
        """Waits for callers to finish their cycles, and starts no more."""
        self._stopping.set()
        self._threads.shutdown(cancel_futures=True)

    def _call(self, cycle: Cycle, gate: Barrier, seconds: float) -> Recorder:
        recorder = Recorder()
        gate.wait(BARRIER_TIMEOUT)
        end = time.monotonic() + seconds
        while not self._stopping.is_set():
            cycle.run(recorder)
            if time.monotonic() >= end:
                break
        return recorder


class LocalStore:
    """A store in this process: the time of a call without gRPC, and in the store alone.

    Nothing in such a call waits. So its times are the thread's processor time, which other
    processes do not lengthen.
    """

    def __init__(self, worker: Worker, store: TimedStore) -> None:
        self._worker = worker
        self._store = store

    def publish(self, token_counts: Iterable[int]) -> None:
        """Caches the shared prompts."""
        for token_count in token_counts:
            publish_prompt(self._worker, token_count)

    def measure(self, token_count: int, seconds: float) -> tuple[Slice, Slice]:
        """Returns the times of whole calls, and of the store's methods within them."""
        recorder = StoreRecorder(self._store)
        cycle = cycle_of(self._worker, token_count, 0)
        end = time.monotonic() + seconds
        while not recorder.call_count or time.monotonic() < end:
            cycle.run(recorder)
        return Slice(recorder.times), Slice(recorder.within)


class StoreRecorder(Recorder):
    """Also records the time of the store's methods within the calls."""

    def __init__(self, store: TimedStore) -> None:
        super().__init__(time.thread_time_ns)
        self.within: dict[str, list[int]] = defaultdict(list)
        self._store = store

    def call(self, name: str, function: Callable[..., T], *args: object) -> T:
        """Makes a call and records it."""
        self._store.last_ns = 0
        answer = super().call(name, function, *args)
        if name and self._store.last_ns:
            self.within[name].append(self._store.last_ns)
        return answer
