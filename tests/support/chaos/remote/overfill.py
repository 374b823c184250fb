"""Fills the engine with foreign values all the time, so that it evicts pages."""

import random
from contextlib import suppress
from threading import Event, Thread

from chaos.remote.rig import EngineRig
from chaos.tally import Tally
from inference_worker.errors import WorkerError

VALUE_BYTES = 1 << 15
# Values a second.
RATE = 40
# Milliseconds. Few lives exceed those of pages, which are above 86,400,000: an engine full of such
# values would evict each page at once.
LIVES = (60_000_000, 86_700_000)
# Names of which the values are, so that they do not grow without end.
NAMES = 4_000
# Between two looks at the engine's own counts, in values.
LOOK_EVERY = 20


class Overfill:
    """A thread that writes until it is closed. An engine that does not answer is left alone."""

    def __init__(self, rig: EngineRig, tally: Tally, *, seed: int) -> None:
        self._rig = rig
        self._tally = tally
        self._chosen = random.Random(seed)
        self._known = 0
        self._closing = Event()
        self._thread = Thread(target=self._run, name="chaos-overfill", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stops. Can be repeated."""
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        number = 0
        while not self._closing.wait(1 / RATE):
            number += 1
            with suppress(OSError, WorkerError):
                self._write()
                if number % LOOK_EVERY == 0:
                    self._count()

    def _write(self) -> None:
        value = self._chosen.randbytes(VALUE_BYTES)
        life = str(self._chosen.randint(*LIVES))
        name = f"foreign/{self._chosen.randrange(NAMES)}"
        self._rig.primary.command("SET", name, value, "PX", life)
        self._tally.add("foreign_values")

    def _count(self) -> None:
        """Counts evictions since the last look. A new engine counts from zero."""
        for line in self._rig.primary.command("INFO", "stats").split(b"\r\n"):
            name, _, count = line.partition(b":")
            if name == b"evicted_keys":
                now = int(count)
                self._tally.add("engine_evictions", now - self._known if now > self._known else 0)
                self._known = now
