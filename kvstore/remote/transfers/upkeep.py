"""Upkeep: refreshes of expiries, deletions of spoiled values, and the engine's clock, on a thread.

All of it is best effort, and none of it is in a request. A hit is a read, and a refresh needs the
rights of a write, which replicas and full engines refuse.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Container, Iterable, Sequence
from threading import Condition, Thread
from typing import Final

import structlog

from kvstore.remote.errors import RemoteError
from kvstore.remote.expiry import EngineClock
from kvstore.remote.liveness.engine_calls import EngineCalls
from kvstore.service.clock import Clock

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

TICK_SECONDS: Final = 1.0
CLOCK_SECONDS: Final = 60.0
# A host that sees more spoiled values than it deletes may have bad memory itself.
DELETES_A_TICK: Final = 1
MOST_DELETES: Final = 1024
# Later than this, a host may have written the value anew.
DELETE_SECONDS: Final = 10.0
MOST_REFRESHES: Final = 1 << 16
REFRESHES_A_CALL: Final = 1000
# A clock that is so wrong is worth a line of the log.
WRONG_SECONDS: Final = 60.0
CLOSE_SECONDS: Final = 5.0


class Upkeep:
    """A thread that works each second. Thread-safe; a refresh or a deletion only waits in it.

    ``tick`` is called each second too, whether or not the engine answers, and ``check`` each
    minute; both wait for a call that is under way. Each call that refreshes or deletes may take
    ``seconds``. A deletion that waited for too long is dropped, and so is one of a value that is
    not ``bad`` any more. The thread calls ``read_clock`` once a minute for the engine's time in ms.
    It reports a failure, which is so noticed without requests.
    """

    def __init__(
        self,
        calls: EngineCalls,
        engine_clock: EngineClock,
        clock: Clock,
        *,
        read_clock: Callable[[], int],
        seconds: float,
        tick: Callable[[], None],
        check: Callable[[], None],
        bad: Container[bytes],
    ) -> None:
        self.skew = 0.0
        self._calls = calls
        self._engine_time_ms = read_clock
        self._engine_clock = engine_clock
        self._clock = clock
        self._seconds = seconds
        self._tick = tick
        self._check = check
        self._bad = bad
        self._changed = Condition()
        self._refreshes: OrderedDict[bytes, int] = OrderedDict()
        # Names of values, with the times at which they were seen to be spoiled.
        self._deletes: OrderedDict[bytes, float] = OrderedDict()
        self._unlinks: list[tuple[Sequence[bytes], Callable[[bool], None]]] = []
        self._check_at = clock()
        self._is_closed = False
        self._thread = Thread(target=self._run, name="kv-remote-upkeep", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def refresh(self, lives_ms: Iterable[tuple[bytes, int]]) -> None:
        """Extends the lives of values by their names, within seconds."""
        with self._changed:
            for name, life in lives_ms:
                if len(self._refreshes) < MOST_REFRESHES:
                    self._refreshes[name] = life

    def delete(self, name: bytes) -> None:
        """Deletes a value, after those before it."""
        with self._changed:
            if len(self._deletes) < MOST_DELETES:
                self._deletes[name] = self._clock()

    def unlink(self, names: Sequence[bytes], done: Callable[[bool], None]) -> None:
        """Deletes values at once, and calls ``done`` with whether the engine did it."""
        with self._changed:
            is_taken = not self._is_closed
            if is_taken:
                self._unlinks.append((names, done))
                self._changed.notify_all()
        if not is_taken:
            done(False)  # noqa: FBT003  # as page stores tell

    def close(self) -> None:
        """Ends the thread."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._thread.join(CLOSE_SECONDS)
        self._unlink()

    def _run(self) -> None:
        while not self._is_over():
            steps = (self._unlink, self._tick, self._read_clock, self._refresh, self._delete)
            for step in steps:
                try:
                    step()
                except RemoteError as error:
                    # It is tried again by the next use, or the next minute.
                    log.debug("remote_upkeep_failed", why=f"{type(error).__name__}: {error}")
                except Exception:
                    log.exception("remote_upkeep_failed")

    def _is_over(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or self._unlinks, TICK_SECONDS)
            return self._is_closed

    def _unlink(self) -> None:
        with self._changed:
            unlinks, self._unlinks = self._unlinks, []
        for names, done in unlinks:
            is_done = False
            try:
                self._calls.delete_many(names, self._clock() + self._seconds)
                is_done = True
            except RemoteError as error:
                log.warning("remote_pages_not_deleted", why=f"{type(error).__name__}: {error}")
            done(is_done)

    def _read_clock(self) -> None:
        if self._clock() < self._check_at:
            return
        self._check_at = self._clock() + CLOCK_SECONDS
        self._check()
        engine_ms = self._engine_time_ms()
        self._engine_clock.set(engine_ms)
        was_wrong = abs(self.skew) > WRONG_SECONDS
        self.skew = engine_ms / 1000 - time.time()
        if abs(self.skew) > WRONG_SECONDS and not was_wrong:
            log.warning(
                "remote_clock_differs",
                seconds=round(self.skew),
                advice="set this host's clock or the engine's; pages live by the engine's",
            )

    def _refresh(self) -> None:
        while True:
            with self._changed:
                most = min(len(self._refreshes), REFRESHES_A_CALL)
                part = [self._refreshes.popitem(last=False) for _ in range(most)]
            if not part:
                return
            names, lives = zip(*part, strict=True)
            self._calls.refresh_many(names, lives, self._clock() + self._seconds)

    def _delete(self) -> None:
        with self._changed:
            oldest = self._clock() - DELETE_SECONDS
            due = [name for name, at in self._deletes.items() if at >= oldest and name in self._bad]
            names, left = due[:DELETES_A_TICK], due[DELETES_A_TICK:]
            self._deletes = OrderedDict((name, self._deletes[name]) for name in left)
        if names:
            self._calls.delete_many(names, self._clock() + self._seconds)
