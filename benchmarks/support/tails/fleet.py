"""The processes of the callers of tails.py."""

import ctypes
import gc
import os
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

from support.child import die_with_parent
from support.rpc.worker import attached_worker
from support.tails.namespaces import key_of
from support.tails.open_loop import Latencies, OpenLoop

CALLERS = "callers"
# Seconds for a process to start and to attach, and to answer after the end of a slice.
READY_TIMEOUT = 120.0
# Seconds until the first call, in which every process hears of the slice.
LEAD = 0.05
PR_SET_TIMERSLACK = 29
# The kernel wakes a thread that sleeps at most this many nanoseconds late.
TIMER_SLACK_NS = 1_000


class Fleet:
    """Callers, each in a process of its own and attached to every store over a lane."""

    def __init__(self, connections: list[Connection]) -> None:
        self._connections = connections

    def measure(self, store: str, seconds: float, calls_per_second: float) -> Latencies:
        """Calls one store for some seconds, all callers together that often a second."""
        count = len(self._connections)
        period = count / calls_per_second
        begin = time.monotonic() + LEAD
        for number, each in enumerate(self._connections):
            # Their times are spread evenly over the period.
            each.send((store, begin + number * period / count, seconds, period))
        return joined(answer_of(each, seconds + READY_TIMEOUT) for each in self._connections)


@contextmanager
def fleet_of(count: int, folders: Mapping[str, Path]) -> Iterator[Fleet]:
    """Starts callers of some stores, by the stores' names, and stops them at the end."""
    context = get_context("spawn")
    parent = os.getpid()
    with ExitStack() as stack:
        connections = []
        for number in range(count):
            near, far = context.Pipe()
            process = context.Process(
                target=_call, args=(far, number, dict(folders), parent), daemon=True
            )
            process.start()
            stack.callback(process.join)
            stack.callback(near.close)
            far.close()
            connections.append(near)
        for each in connections:
            answer_of(each, READY_TIMEOUT)
        yield Fleet(connections)


def answer_of(connection: Connection, timeout: float) -> Latencies:
    """Waits for a process's answer. Raises ``TimeoutError``, or EOFError if the process ended."""
    if not connection.poll(timeout):
        raise TimeoutError(f"a process did not answer within {timeout} s")
    answer: Latencies = connection.recv()
    return answer


def joined(parts: Iterable[Latencies]) -> Latencies:
    """Returns the latencies of several callers or slices together."""
    scheduled: dict[str, list[float]] = defaultdict(list)
    sent: dict[str, list[float]] = defaultdict(list)
    refused, cores = 0, tuple[float, ...]()
    for part in parts:
        for into, of in ((scheduled, part.scheduled), (sent, part.sent)):
            for name, times in of.items():
                into[name] += times
        refused += part.refused
        cores += part.cores
    return Latencies(dict(scheduled), dict(sent), refused, cores)


def _call(connection: Connection, number: int, folders: dict[str, Path], parent: int) -> None:
    die_with_parent(parent)
    ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, TIMER_SLACK_NS)
    with ExitStack() as stack:
        loops = {
            name: OpenLoop(
                stack.enter_context(attached_worker(folder, hot_lane=True, key=key_of(CALLERS))),
                number,
            )
            for name, folder in folders.items()
        }
        # A collection here would count as the store's time.
        gc.collect()
        gc.freeze()
        gc.disable()
        connection.send(Latencies({}, {}, 0))
        while True:
            try:
                store, begin, seconds, period = connection.recv()
            except EOFError:
                return
            connection.send(loops[store].run(begin, seconds, period))
            gc.collect()
