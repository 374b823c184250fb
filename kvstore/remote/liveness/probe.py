"""The probe: a thread that finds out whether an engine which was away works again.

A ping is no probe. A line can pass small packets alone, and a disk can hang behind an engine that
answers. So the probe writes and reads a value as large as a page. No request is a probe.
"""

import os
import random
from collections.abc import Callable, Iterator
from threading import Thread
from typing import Final

import structlog

from kvstore.remote.engine import ReadResult
from kvstore.remote.errors import EngineRefused, NodeAway, Reaction, RemoteError
from kvstore.remote.liveness.breaker import Breaker
from kvstore.remote.liveness.engine_calls import EngineCalls
from kvstore.remote.secret.names import RemoteNames
from kvstore.service.clock import Clock

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

FIRST_SECONDS: Final = 0.2
# An operator needs longer to change a setting.
FIRST_OPERATOR_SECONDS: Final = 5.0
MOST_SECONDS: Final = 30.0
JITTER: Final = 0.5
CANARY_LIFE_MS: Final = 60_000
CLOSE_SECONDS: Final = 5.0
_MARK_BYTES: Final = 8
# Names that a probe tries: the node of the first ones may be away while others answer.
MOST_NAMES: Final = 8
# Its own: threads must not draw from the numbers of others.
_RANDOM: Final = random.Random()  # noqa: S311  # no secret


class CanaryLost(EngineRefused):
    """The engine took a value and then did not return it."""

    reaction = Reaction.AWAY


class Probe:
    """A thread that works while the breaker is open, and closes it.

    ``calls`` report nothing to the breaker. Each of the two calls may take ``seconds``. Without
    ``writes`` it reads alone, and so it does with an engine that refuses the value but answers.
    """

    def __init__(
        self,
        calls: EngineCalls,
        breaker: Breaker,
        names: RemoteNames,
        clock: Clock,
        *,
        canary_bytes: int,
        seconds: float,
        writes: bool,
    ) -> None:
        self._calls = calls
        self._breaker = breaker
        self._names = names
        self._clock = clock
        self._bytes = canary_bytes
        self._seconds = seconds
        self._writes = writes
        self._thread = Thread(target=self._run, name="kv-remote-probe", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def join(self) -> None:
        """Waits for the thread's end."""
        self._thread.join(CLOSE_SECONDS)

    def _run(self) -> None:
        while self._breaker.wait_until_open():
            pauses = probe_pauses(lambda: self._breaker.needs_operator)
            while self._breaker.rest(next(pauses)):
                try:
                    self._try()
                except RemoteError as error:
                    self._breaker.note(error)
                except Exception:
                    log.exception("remote_probe_failed")
                else:
                    self._breaker.close()
                    break

    def _try(self) -> None:
        """Writes and reads the canary; raises a ``RemoteError`` if that fails."""
        refused: RemoteError = NodeAway("no node answers")
        for _ in range(MOST_NAMES):
            try:
                self._pass(self._names.canary(os.urandom(_MARK_BYTES)))
            except NodeAway as error:
                refused = error
            else:
                return
        raise refused

    def _pass(self, name: bytes) -> None:
        """Writes and reads the canary on the node of a name."""
        sent, got = memoryview(os.urandom(self._bytes)), memoryview(bytearray(self._bytes))
        is_written = self._writes and self._write(name, sent)
        [result] = self._calls.get_many([name], [got], self._clock() + self._seconds)
        if result is ReadResult.AWAY:
            raise NodeAway("the node of the canary is away")
        if is_written and (result is not ReadResult.READ or got != sent):
            raise CanaryLost(f"a value of {self._bytes} bytes is {result.value} after its write")

    def _write(self, name: bytes, sent: memoryview) -> bool:
        """Returns whether the engine took the canary. It can refuse writes, and serve reads."""
        deadline = self._clock() + self._seconds
        try:
            [error] = self._calls.put_many([name], [sent], [CANARY_LIFE_MS], deadline)
        except RemoteError as raised:
            error = raised
        if error is not None and error.reaction in {Reaction.AWAY, Reaction.NODE}:
            raise error
        return error is None


def probe_pauses(is_slow: Callable[[], bool]) -> Iterator[float]:
    """Yields the seconds before each probe, with jitter; longer ones while only an operator helps.

    They double up to ``MOST_SECONDS``.
    """
    seconds = FIRST_SECONDS
    while True:
        pause = max(seconds, FIRST_OPERATOR_SECONDS if is_slow() else 0.0)
        yield pause * _RANDOM.uniform(1 - JITTER, 1)
        seconds = min(2 * seconds, MOST_SECONDS)
