"""Points at which a test can make this process fail, by name and count.

``KVSTORE_FAULT="insert.after:1=kill"`` kills the process with SIGKILL at its first visit of
``insert.after``; ``=stop`` stops it with SIGSTOP instead. Commas separate several faults.
Nothing happens without the variable. A program may plan its own faults with actions of its own
(:func:`plan_faults`), and have points of its own.

The client visits ``NAME.before`` and ``NAME.after`` of each protocol step: hello, grant, bind,
open, extent (an announced extent is mapped and acknowledged), renew, match, acquire, reserve,
insert, release, revoke. At ``NAME.after`` the answer has arrived and nothing was done with it.
"""

import os
import signal
from collections import Counter
from collections.abc import Callable, Mapping
from threading import Lock
from types import MappingProxyType
from typing import TypeAlias

VARIABLE = "KVSTORE_FAULT"
# The client's protocol steps, in the order of a worker's life.
STEPS = (
    *("hello", "grant", "bind", "open", "extent", "renew"),
    *("match", "acquire", "reserve", "insert", "release", "revoke"),
)

Action: TypeAlias = Callable[[], None]


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


ACTIONS: Mapping[str, Action] = MappingProxyType({"kill": _kill, "stop": _stop})


class FaultPlan:
    """Actions by point and number of the visit. Thread-safe.

    ``text`` has the form of the variable and names actions of ``actions``.
    Raises ``ValueError`` for a text that is not ``NAME:COUNT=ACTION``.
    """

    def __init__(self, text: str, actions: Mapping[str, Action] = ACTIONS) -> None:
        self._planned: dict[tuple[str, int], Action] = {}
        self._visits: Counter[str] = Counter()
        self._mutex = Lock()
        for entry in filter(None, text.split(",")):
            point, _, action = entry.partition("=")
            name, _, count = point.partition(":")
            if not name or not count.isdecimal() or action not in actions:
                raise ValueError(
                    f"{VARIABLE}: {entry!r} is not NAME:COUNT=ACTION with one of {[*actions]}"
                )
            self._planned[name, int(count)] = actions[action]

    def visit(self, name: str) -> Action | None:
        """Counts a visit and returns its action, or None."""
        if not self._planned:
            return None
        with self._mutex:
            self._visits[name] += 1
            return self._planned.get((name, self._visits[name]))


_plans = [FaultPlan(os.environ.get(VARIABLE, ""))]


def plan_faults(text: str, actions: Mapping[str, Action] = MappingProxyType({})) -> None:
    """Replaces this process's plan and counts visits from zero. Kill and stop stay available.

    Raises ``ValueError`` as :class:`FaultPlan` does.
    """
    _plans[0] = FaultPlan(text, {**ACTIONS, **actions})


def fault_point(name: str) -> None:
    """Counts a visit of a point and runs its action, if one is planned."""
    planned = _plans[0].visit(name)
    if planned is not None:
        planned()
