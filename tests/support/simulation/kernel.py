"""Simulated time, processes, and their threads, of which exactly one runs at a time.

A thread is a greenlet: it runs until it waits, and then the scheduler takes the
next event, in the order of simulated time. All chance comes from one seeded
generator, so that a seed names one run.
"""

from collections.abc import Callable
from functools import partial
from heapq import heappop, heappush
from random import Random

from greenlet import getcurrent, greenlet

# A simulated clock begins far from zero, as a machine's does.
START = 1000.0
# The longest that a thread that may go on waits for its turn, in seconds.
TURN = 0.001
# How often a thread that takes a mutex lets others go first.
PREEMPTION = 0.05
# More than any schedule takes: whoever goes on for longer makes no progress.
MOST_STEPS = 60_000


class Violation(AssertionError):
    """Something that must never be."""


class Killed(BaseException):
    """The process of the thread that runs was killed: leave, and do nothing on the way."""


class Process:
    """A simulated process: its threads, and whether it lives, or is stopped."""

    def __init__(self, kernel: "Kernel", name: str) -> None:
        self.name = name
        self.alive = True
        self.stopped_until = 0.0
        self.threads: list[SimThread] = []
        self.at_death: list[Callable[[], None]] = []
        self._kernel = kernel

    def spawn(self, name: str, work: Callable[[], None]) -> "SimThread":
        """Starts a thread."""
        thread = SimThread(self, f"{self.name}.{name}", work)
        self.threads.append(thread)
        self._kernel.after(self._kernel.turn(), partial(self._kernel.begin, thread), self)
        return thread

    def stop(self, seconds: float) -> None:
        """Stops all threads of the process for some time, as SIGSTOP and SIGCONT do."""
        self.stopped_until = max(self.stopped_until, self._kernel.now + seconds)

    def kill(self) -> None:
        """Ends it at once: no thread of it runs again. Not by a thread of its own."""
        if self.alive:
            self.alive = False
            for thread in self.threads:
                self._kernel.unwind(thread)
            while self.at_death:
                self.at_death.pop()()


class SimThread:
    """One thread. ``turns`` counts how often it waited, so that old wake-ups are told apart."""

    def __init__(self, process: Process, name: str, work: Callable[[], None]) -> None:
        self.process = process
        self.name = name
        self.turns = 0
        self.done = False
        self.begun = False
        self.joiners: list[SimThread] = []
        self.greenlet = greenlet(work)


class Kernel:
    """The scheduler: events in the order of time. ``failures`` are errors nobody caught."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.now = START
        self.steps = 0
        self.running: SimThread | None = None
        self.failures: list[str] = []
        self.trace: list[str] = []
        self._events: list[tuple[float, int, Process | None, Callable[[], None]]] = []
        self._number = 0
        self._main = getcurrent()

    def clock(self) -> float:
        """Returns the simulated time, in seconds."""
        return self.now

    def note(self, *words: object) -> None:
        """Adds a line to the trace."""
        self.trace.append(f"{self.now:.6f} {' '.join(map(str, words))}")

    def turn(self) -> float:
        """Returns a short wait, by chance."""
        return self.random.random() * TURN

    def after(
        self, seconds: float, action: Callable[[], None], process: Process | None = None
    ) -> None:
        """Plans an action, which waits while its process is stopped, and is dropped if it dies."""
        self._number += 1
        heappush(self._events, (self.now + seconds, self._number, process, action))

    def run(self, until: Callable[[], bool], seconds: float) -> bool:
        """Advances time until a condition holds; returns False if ``seconds`` pass before."""
        end = self.now + seconds
        while not until():
            if not self._events or self._events[0][0] > end:
                self.now = max(self.now, end)
                return until()
            self.steps += 1
            if self.steps > MOST_STEPS:
                raise Violation("no progress: the schedule goes on and on")
            when, number, process, action = heappop(self._events)
            self.now = max(self.now, when)
            if process is not None and not process.alive:
                continue
            if process is not None and process.stopped_until > self.now:
                later = process.stopped_until + self.turn()
                heappush(self._events, (later, number, process, action))
                continue
            action()
        return True

    # Threads.

    def begin(self, thread: SimThread) -> None:
        """Runs a new thread until it waits."""
        if not thread.done:
            thread.begun = True
            self._switch(thread)

    def sleep(self, seconds: float) -> None:
        """Suspends the running thread for some time."""
        self.park(seconds)

    def preempt(self) -> None:
        """Perhaps let others go before the running thread, if one runs."""
        if self.running is not None:
            self.require_life()
            if self.random.random() < PREEMPTION:
                self.park(self.turn())

    def park(self, timeout: float | None = None) -> bool:
        """Suspends the running thread. Returns whether it was woken before the timeout."""
        thread = self.running
        if thread is None:
            raise Violation("something waits that must not: no thread runs")
        self.require_life()
        thread.turns += 1
        if timeout is not None:
            again = partial(self._resume, thread, thread.turns, woken=False)
            self.after(max(timeout, 0.0), again, thread.process)
        self.running = None
        woken: bool = self._main.switch()
        self.running = thread
        self.require_life()
        return woken

    def wake(self, thread: SimThread) -> None:
        """Lets a waiting thread continue soon."""
        again = partial(self._resume, thread, thread.turns, woken=True)
        self.after(self.turn(), again, thread.process)

    def require_life(self) -> None:
        """Raises :class:`Killed` in a thread of a dead process."""
        if self.running is not None and not self.running.process.alive:
            raise Killed

    def unwind(self, thread: SimThread) -> None:
        """Ends a thread of a dead process."""
        if thread.begun and not thread.done:
            self.running = thread
            try:
                thread.greenlet.throw(Killed)
            except Killed:
                pass
            finally:
                self.running = None
        thread.done = True

    def _resume(self, thread: SimThread, turn: int, *, woken: bool) -> None:
        if thread.turns == turn and not thread.done:
            thread.turns += 1
            self._switch(thread, woken)

    def _switch(self, thread: SimThread, *values: bool) -> None:
        self.running = thread
        try:
            thread.greenlet.switch(*values)
        except Killed:
            pass
        except Exception as error:  # noqa: BLE001 - of whatever kind, nobody caught it
            self.failures.append(f"{thread.name}: {error!r}")
        finally:
            self.running = None
        if thread.greenlet.dead:
            thread.done = True
            for joiner in thread.joiners:
                self.wake(joiner)
