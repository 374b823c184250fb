"""Places where a test can have this process die or stop, by name and count.

``KVSTORE_FAULT="insert.after:1=kill"`` kills the process with SIGKILL the first
time that it comes to ``insert.after``; ``=stop`` stops it with SIGSTOP instead.
Several are separated by commas. Without the variable nothing happens. The
client comes to ``NAME.before`` and ``NAME.after`` (the answer has come, nothing
was done with it yet) of each protocol step: match, acquire, reserve, insert,
release. Programs may have points of their own.
"""

import os
import signal
from collections import Counter
from threading import Lock

VARIABLE = "KVSTORE_FAULT"
ACTIONS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}


class FaultPlan:
    """Which signal comes at which visit of which point. Thread-safe.

    Raises ``ValueError`` for a text that is not of the form ``NAME:COUNT=ACTION``.
    """

    def __init__(self, text: str) -> None:
        self._signals: dict[tuple[str, int], signal.Signals] = {}
        self._visits: Counter[str] = Counter()
        self._mutex = Lock()
        for entry in filter(None, text.split(",")):
            point, _, action = entry.partition("=")
            name, _, count = point.partition(":")
            if not name or not count.isdecimal() or action not in ACTIONS:
                msg = f"{VARIABLE}: {entry!r} is not NAME:COUNT=ACTION with one of {[*ACTIONS]}"
                raise ValueError(msg)
            self._signals[name, int(count)] = ACTIONS[action]

    def visit(self, name: str) -> signal.Signals | None:
        """Count a visit and return the signal that is planned for it."""
        if not self._signals:
            return None
        with self._mutex:
            self._visits[name] += 1
            return self._signals.get((name, self._visits[name]))


_PLAN = FaultPlan(os.environ.get(VARIABLE, ""))


def fault_point(name: str) -> None:
    """Send this process the signal that the environment plans for this visit, if any."""
    planned = _PLAN.visit(name)
    if planned is not None:
        os.kill(os.getpid(), planned)
