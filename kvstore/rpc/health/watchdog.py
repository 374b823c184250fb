"""Health by service name, as the store's own threads show it: a watchdog."""

import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from threading import Event, Thread

import structlog
from grpc_health.v1 import health_pb2

from kvstore.rpc.health.probes import Ticking
from kvstore.rpc.health.servicer import HealthServicer
from kvstore.service.clock import Clock

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

# Seconds of silence after which new work had better go elsewhere. Every watched thread gets
# round once a second at least, and a call waits for milliseconds.
STALE_AFTER = 3.0
# Seconds of silence after which the process had better be replaced: a stall that long does not
# pass by itself, and what workers hold is theirs to keep until they let go.
DEAD_AFTER = 30.0
# Seconds between two looks.
INTERVAL = 0.5
# Asked for by supervisors. Every other name, the empty one too, speaks of readiness.
LIVENESS = "liveness"
READINESS = "readiness"
# Lines of a thread's stack in the log, innermost last: the name of a place, never a value.
STACK_LINES = 8
THREAD_PREFIXES = ("kvstore-", "MainThread")

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class Health:
    """The health of every service: whether it is ready, and under ``liveness`` whether it is alive.

    Ready: SERVING after ``begin_serving``, and NOT_SERVING for good after ``begin_draining``. Also
    NOT_SERVING while one of ``threads``, by name, has ended or has not ticked for ``stale_after``
    seconds.

    Alive: SERVING from the start, unless a thread has ended or was silent for ``dead_after``
    seconds. After ``fail`` it is neither ready nor alive.

    Calls ``looks`` before each check of the threads; they may wait for a fraction of a second.
    ``servicer`` is what a gRPC server registers. Thread-safe.
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
        """``heartbeat`` is called after each look that found the process alive."""
        services = tuple(services)
        self.servicer = HealthServicer(("", READINESS, *services))
        self.servicer.set(SERVING, LIVENESS)
        self._threads = dict(threads)
        self._clock = clock
        self._looks = tuple(looks)
        self._heartbeat = heartbeat
        self._stale_after = stale_after
        self._dead_after = dead_after
        self._closing = Event()
        self._thread = Thread(target=self._run, name="kvstore-health", daemon=True)
        self._failing: list[str] | None = None
        self._failed = False
        self._looked_at = clock()

    def watch(self, name: str, thread: Ticking) -> None:
        """Looks at one thread more; before ``begin_serving``."""
        self._threads[name] = thread

    @property
    def threads(self) -> dict[str, Ticking]:
        """What it watches, by name."""
        return dict(self._threads)

    def says(self, name: str) -> bool:
        """Returns whether it says SERVING of a service, of READINESS or of LIVENESS."""
        serving: bool = self.servicer.status(name) == SERVING
        return serving

    def begin_serving(self) -> None:
        """Says what the threads show, from now on; once."""
        self.check()
        self._thread.start()

    def begin_draining(self) -> None:
        """Says that it is not ready, from now on and for good; it lives on."""
        self.servicer.set(NOT_SERVING, final=True)

    def fail(self) -> None:
        """Says that the server is neither ready nor alive, from now on and for good.

        For a failure that only a new process can cure, such as a lost device. The server sends no
        more heartbeats and fails its liveness probe, so its supervisor replaces it.
        """
        self._failed = True
        self.servicer.set(NOT_SERVING, final=True)
        self.servicer.set(NOT_SERVING, LIVENESS, final=True)

    def close(self) -> None:
        """Stops looking, and waits until that is so; watchers are told nothing more."""
        self.begin_draining()
        self._closing.set()
        self.servicer.close()
        if self._thread.ident is not None:
            self._thread.join()

    def check(self) -> None:
        """Looks at the threads, say what they show, and log a change.

        A look that comes as late as a thread's tick would have to be says nothing but
        that the process lives: it was stopped, or got no processor time, and its
        threads need a moment.
        """
        for look in self._looks:
            look()
        now = self._clock()
        late = now - self._looked_at > self._stale_after
        self._looked_at = now
        if late:
            self._beat()
            return
        self._say_ready(self._silent_for(self._stale_after, now))
        dead = self._silent_for(self._dead_after, now)
        self.servicer.set(NOT_SERVING if dead else SERVING, LIVENESS)
        if not dead:
            self._beat()

    def _beat(self) -> None:
        if not self._failed:
            self._heartbeat()

    def _silent_for(self, seconds: float, now: float) -> list[str]:
        return sorted(
            name
            for name, thread in self._threads.items()
            if not thread.is_alive() or now - thread.last_tick > seconds
        )

    def _say_ready(self, failing: list[str]) -> None:
        if failing == self._failing:
            return
        self._failing = failing
        if failing:
            log.error("health_lost", silent=failing, stacks=stacks())
            self.servicer.set(NOT_SERVING)
        else:
            log.info("health_serving")
            self.servicer.set(SERVING)

    def _run(self) -> None:
        while not self._closing.wait(INTERVAL):
            try:
                self.check()
            except Exception:  # the one thread that nobody watches
                log.exception("health_failed")


def stacks() -> dict[str, list[str]]:
    """Returns where each thread of ours is: file, line and function, innermost last."""
    frames = sys._current_frames()  # noqa: SLF001  # documented, for this very purpose
    return {
        thread.name: [
            f"{Path(frame.filename).name}:{frame.lineno} {frame.name}"
            for frame in traceback.extract_stack(frames[thread.ident])[-STACK_LINES:]
        ]
        for thread in threading.enumerate()
        if thread.ident in frames and thread.name.startswith(THREAD_PREFIXES)
    }
