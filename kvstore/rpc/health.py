"""Health by service name, as the store's own threads show it."""

from collections.abc import Iterable, Mapping
from threading import Event, Thread
from typing import Protocol

import structlog
from grpc_health.v1 import health_pb2

from kvstore.rpc.health_servicer import HealthServicer
from kvstore.service.clock import Clock

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

# How long a thread may be silent, in seconds. Allocating an extent, the longest that one
# does without a tick, takes a second for several GiB.
STALE_AFTER = 10.0


class Ticking(Protocol):
    """A thread that shows that it gets round: ``last_tick`` is by the store's clock."""

    @property
    def last_tick(self) -> float:
        """When it last got round, in seconds."""
        ...

    def is_alive(self) -> bool:
        """Return whether the thread runs."""
        ...


class Health:
    """Says SERVING for all services, or NOT_SERVING for all. Thread-safe.

    NOT_SERVING from the start, until ``begin_serving``; while one of ``threads``,
    by name, ended or did not tick for ``stale_after`` seconds; and for good after
    ``begin_draining``. ``servicer`` is what a gRPC server registers.
    """

    def __init__(
        self,
        services: Iterable[str],
        threads: Mapping[str, Ticking],
        *,
        clock: Clock,
        interval: float = 1.0,
        stale_after: float = STALE_AFTER,
    ) -> None:
        self.servicer = HealthServicer(("", *services))
        self._threads = dict(threads)
        self._clock = clock
        self._interval = interval
        self._stale_after = stale_after
        self._closing = Event()
        self._thread = Thread(target=self._run, name="kvstore-health", daemon=True)
        self._failing: list[str] | None = None
        self._looked_at = clock()

    def begin_serving(self) -> None:
        """Say what the threads show, from now on; once."""
        self.check()
        self._thread.start()

    def begin_draining(self) -> None:
        """Say NOT_SERVING, from now on and for good."""
        self._closing.set()
        self.servicer.set(health_pb2.HealthCheckResponse.NOT_SERVING, final=True)

    def close(self) -> None:
        """Stop looking, and wait until that is so; watchers are told nothing more."""
        self.begin_draining()
        self.servicer.close()
        if self._thread.ident is not None:
            self._thread.join()

    def check(self) -> None:
        """Look at the threads, say what they show, and log a change.

        A look that comes as late as a thread's tick would have to be says nothing:
        the whole process was stopped, and its threads need a moment.
        """
        now = self._clock()
        late = now - self._looked_at > self._stale_after
        self._looked_at = now
        if late:
            return
        failing = sorted(
            name
            for name, thread in self._threads.items()
            if not thread.is_alive() or now - thread.last_tick > self._stale_after
        )
        if failing == self._failing:
            return
        self._failing = failing
        if failing:
            log.error("health_lost", threads=failing)
            self.servicer.set(health_pb2.HealthCheckResponse.NOT_SERVING)
        else:
            log.info("health_serving")
            self.servicer.set(health_pb2.HealthCheckResponse.SERVING)

    def _run(self) -> None:
        while not self._closing.wait(self._interval):
            self.check()
