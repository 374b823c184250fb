"""The faults of the engine and of the lines to it, one after another."""

import random
import time
from collections.abc import Callable, Iterator
from threading import Event, Thread

from chaos.remote.rig import EngineRig
from chaos.tally import Tally
from processes.proxy import GOOD, SILENT, Line

# Of each kind at least so many in ten minutes, and their names in the result.
KINDS = {
    "kill": (20, "engine_kills"),
    "stop": (20, "engine_stops"),
    "failover": (5, "engine_failovers"),
    "cut": (6, "lines_cut"),
    "drip": (6, "lines_dripped"),
    "silent": (6, "lines_silent"),
    "flip": (6, "lines_flipped"),
}
# Seconds from one fault to the next, so that ten minutes have one of each kind and then all.
LONGEST_GAP = 600.0 / sum(1 + count for count, _ in KINDS.values())
# Seconds that a fault lasts: longer than the store's deadlines.
LASTS = (1.0, 2.5)
# An engine that was killed is back after so many seconds.
DOWN = (0.2, 1.0)
DRIP = Line(delay=0.02, piece_bytes=1024)
FLIP = Line(flip_every=24_000)
CUT_AFTER = (1, 40_000)


def kinds(chosen: random.Random) -> Iterator[str]:
    """Yields kinds without end: each once, then all by their numbers in an order of chance."""
    yield from chosen.sample(list(KINDS), len(KINDS))
    every = [name for name, (count, _) in KINDS.items() for _ in range(count)]
    while True:
        yield from chosen.sample(every, len(every))


class Strikes:
    """A thread that strikes until ``end``: each kind once, about every ``gap`` seconds.

    Then it strikes about every ``LONGEST_GAP`` seconds: what hosts share needs an engine that
    answers in between.
    """

    def __init__(self, rig: EngineRig, tally: Tally, *, seed: int, gap: float) -> None:
        self._rig = rig
        self._tally = tally
        self._chosen = random.Random(seed)
        self._gap = min(gap, LONGEST_GAP)
        self._ending = Event()
        self._ways: dict[str, Callable[[], None]] = {
            "kill": self._kill,
            "stop": self._stop,
            "failover": self._rig.fail_over,
            "cut": self._cut,
            "drip": lambda: self._line(DRIP),
            "silent": lambda: self._line(SILENT),
            "flip": lambda: self._line(FLIP),
        }
        self._thread = Thread(target=self._run, name="chaos-strikes", daemon=True)
        self._thread.start()

    @property
    def calm(self) -> bool:
        """True if nothing happens to the engine any more."""
        return not self._thread.is_alive()

    def end(self) -> None:
        """Ends all faults. Does not wait."""
        self._ending.set()

    def close(self) -> None:
        """Ends all faults, and waits for it."""
        self._ending.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            due = time.monotonic()
            for number, kind in enumerate(kinds(self._chosen)):
                if number == len(KINDS) and self._gap < LONGEST_GAP:
                    self._gap, due = LONGEST_GAP, time.monotonic()
                due += self._gap * self._chosen.uniform(0.5, 1.5)
                if self._ending.wait(max(due - time.monotonic(), 0.0)):
                    return
                self._ways[kind]()
                self._tally.add(KINDS[kind][1])
        except BaseException as error:
            self._tally.wrong("server_failures", f"the engine: {error!r}")
            raise

    def _kill(self) -> None:
        self._rig.primary.kill()
        self._ending.wait(self._chosen.uniform(*DOWN))
        self._rig.primary.start()

    def _stop(self) -> None:
        self._rig.stop()
        self._ending.wait(self._chosen.uniform(*LASTS))
        self._rig.resume()

    def _cut(self) -> None:
        """Cuts a line after some bytes, in the middle of a page or of a word."""
        self._line(Line(cut_after=self._chosen.randint(*CUT_AFTER)))

    def _line(self, fault: Line) -> None:
        """Gives one host, or all, a bad line for a while."""
        count = self._chosen.choice((1, len(self._rig.lines)))
        bad = self._chosen.sample(self._rig.lines, count)
        for each in bad:
            each.line = fault
        self._ending.wait(self._chosen.uniform(*LASTS))
        for each in bad:
            each.line = GOOD
