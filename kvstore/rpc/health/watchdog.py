"""Readiness and liveness of the server, judged by the ticks of its threads."""

import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from threading import Event, Thread

import structlog

from kvstore.rpc.health.probes import Ticking
from kvstore.rpc.health.servicer import HealthServicer
from kvstore.service.clock import Clock

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

# Seconds of silence after which new work should go elsewhere. Every watched thread ticks at least
# once a second, and a call waits for milliseconds.
STALE_AFTER = 3.0
# Seconds of silence after which the process should be replaced: a stall that long does not end by
# itself. Workers keep what they hold until they release it.
DEAD_AFTER = 30.0
# Seconds between two checks.
INTERVAL = 0.5
# The service name that liveness probes ask for. Every other name means readiness.
LIVENESS = "liveness"
READINESS = "readiness"
# Lines of a thread's stack in the log, innermost last. A line names a place, never a value.
STACK_LINES = 8
THREAD_PREFIXES = ("kvstore-", "MainThread")


class Health:
    """The readiness of every service, and the liveness of the process. Thread-safe.

    Ready: SERVING after ``begin_serving``, until ``begin_draining``. NOT_SERVING while one of
    ``threads``, by name, has ended or has not ticked for ``stale_after`` seconds.

    Alive: SERVING from the start, unless a thread has ended or was silent for ``dead_after``
    seconds. After ``fail`` it is neither ready nor alive.

    Calls ``looks`` before each check of the threads; they may wait for a fraction of a second.
    ``servicer`` answers a gRPC server's calls.
    """

    def __init__(
        self,
        services: Iterable[str],
        threads: Mapping[str, Ticking],
        *,
        clock: Clock,
        looks: Iterable[Callable[[], None]] = (),
        heartbeat: Callable[[], None] = lambda: None,
        stale_after: float = STALE_AFTER,
        dead_after: float = DEAD_AFTER,
    ) -> None:
        """``heartbeat`` is called after each check that finds the process alive."""
        states = dict.fromkeys(("", READINESS, *services), self._is_ready)
        self._states = {**states, LIVENESS: self._is_alive}
        self.servicer = HealthServicer(self._states)
        self._threads = dict(threads)
        self._clock = clock
        self._looks = tuple(looks)
        self._heartbeat = heartbeat
        self._stale_after = stale_after
        self._dead_after = dead_after
        self._closing = Event()
        self._thread = Thread(target=self._run, name="kvstore-health", daemon=True)
        # The names of the silent threads at the last check, None before the first.
        self._silent: list[str] | None = None
        self._dead = False
        self._draining = False
        self._failed = False
        self._checked_at = clock()

    def watch(self, name: str, thread: Ticking) -> None:
        """Watches one more thread. Must be called before ``begin_serving``."""
        self._threads[name] = thread

    @property
    def threads(self) -> dict[str, Ticking]:
        """The watched threads by name."""
        return dict(self._threads)

    def says(self, name: str) -> bool:
        """Returns whether a service, READINESS or LIVENESS is SERVING."""
        state = self._states.get(name)
        return state is not None and state()

    def begin_serving(self) -> None:
        """Checks the threads now, and regularly from now on. Must be called once."""
        self.check()
        self._thread.start()

    def begin_draining(self) -> None:
        """Ends readiness for good. The process stays alive."""
        self._draining = True

    def fail(self) -> None:
        """Ends readiness and liveness for good.

        For a failure that only a new process can cure, such as a lost device. The server sends no
        more heartbeats and fails its liveness probe, so its supervisor replaces it.
        """
        self._failed = True

    def close(self) -> None:
        """Ends readiness, stops the checks and waits for their thread."""
        self.begin_draining()
        self._closing.set()
        if self._thread.ident is not None:
            self._thread.join()

    def check(self) -> None:
        """Checks every thread and logs a change.

        A check that is itself later than ``stale_after`` judges no thread: the process was
        suspended or got no processor time, and its threads need a moment.
        """
        for look in self._looks:
            look()
        now = self._clock()
        late = now - self._checked_at > self._stale_after
        self._checked_at = now
        if not late:
            self._note_silent(self._silent_for(self._stale_after, now))
            self._dead = bool(self._silent_for(self._dead_after, now))
        if not self._failed and (late or not self._dead):
            self._heartbeat()

    def _is_ready(self) -> bool:
        return self._silent == [] and not self._draining and not self._failed

    def _is_alive(self) -> bool:
        return not self._dead and not self._failed

    def _silent_for(self, seconds: float, now: float) -> list[str]:
        return sorted(
            name
            for name, thread in self._threads.items()
            if not thread.is_alive() or now - thread.last_tick > seconds
        )

    def _note_silent(self, silent: list[str]) -> None:
        if silent == self._silent:
            return
        self._silent = silent
        if silent:
            log.error("health_lost", silent=silent, stacks=stacks())
        else:
            log.info("health_serving")

    def _run(self) -> None:
        while not self._closing.wait(INTERVAL):
            try:
                self.check()
            except Exception:  # no other thread watches this one
                log.exception("health_failed")


def stacks() -> dict[str, list[str]]:
    """Returns where each of the server's threads is: file, line and function, innermost last."""
    frames = sys._current_frames()  # noqa: SLF001  # documented, for this very purpose
    return {
        thread.name: [
            f"{Path(frame.filename).name}:{frame.lineno} {frame.name}"
            for frame in traceback.extract_stack(frames[thread.ident])[-STACK_LINES:]
        ]
        for thread in threading.enumerate()
        if thread.ident in frames and thread.name.startswith(THREAD_PREFIXES)
    }
