"""Places where a test can have something happen to this process, by name and count.

``KVSTORE_FAULT="insert.after:1=kill"`` kills the process with SIGKILL the first
time that it comes to ``insert.after``; ``=stop`` stops it with SIGSTOP instead.
Several are separated by commas. Without the variable nothing happens, and a
program may plan its own faults, with actions of its own (:func:`plan_faults`).
The client comes to ``NAME.before`` and ``NAME.after`` (the answer has come, nothing
was done with it yet) of each protocol step: hello, grant, bind, open, extent (an
announced one is mapped and acknowledged), renew, match, acquire, reserve, insert,
release, revoke. Programs may have points of their own.
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
    """What happens at which visit of which point. Thread-safe.

    ``text`` is of the form of the variable; its actions are named in ``actions``.
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
                msg = f"{VARIABLE}: {entry!r} is not NAME:COUNT=ACTION with one of {[*actions]}"
                raise ValueError(msg)
            self._planned[name, int(count)] = actions[action]

    def visit(self, name: str) -> Action | None:
        """Counts a visit and returns what is planned for it."""
        if not self._planned:
            return None
        with self._mutex:
            self._visits[name] += 1
            return self._planned.get((name, self._visits[name]))


_plans = [FaultPlan(os.environ.get(VARIABLE, ""))]


def plan_faults(text: str, actions: Mapping[str, Action] = MappingProxyType({})) -> None:
    """Replaces this process's plan, with ``actions`` besides kill and stops; visits count anew.

    Raises ``ValueError`` as :class:`FaultPlan` does.
    """
    _plans[0] = FaultPlan(text, {**ACTIONS, **actions})


def fault_point(name: str) -> None:
    """Have happen to this process what is planned for this visit, if anything."""
    planned = _plans[0].visit(name)
    if planned is not None:
        planned()
