"""Checks that a killed process's kernels have ended when the process is reaped."""

import os
import signal
import time
from contextlib import suppress
from typing import Any, Final

from gpu_machine.probes.actor import Actor, ActorError

SIZE: Final = 64 << 20
# The kernels queued at the kill: twenty seconds of work, of which one kernel runs.
KERNEL_SECONDS: Final = 0.5
KERNELS: Final = 40
PATIENCE: Final = 20.0
# Seconds between two reads of the word that the kernels count in.
LOOK_SECONDS: Final = 0.5


def killed() -> dict[str, Any]:
    """Nothing is written after a process with kernels queued was killed and reaped."""
    return _killed(None)


def killed_beside_a_fork() -> dict[str, Any]:
    """The same, while a child that it forked sleeps and has the device's descriptors."""
    return _killed({"closes": False})


def killed_beside_a_fork_that_closed() -> dict[str, Any]:
    """The same, while the child has closed and unmapped the device's files."""
    return _killed({"closes": True})


def _killed(sleeper: dict[str, bool] | None) -> dict[str, Any]:
    pid = 0
    with Actor() as owner, Actor() as writer:
        owner.ask("start")
        writer.ask("start")
        handle = owner.ask("allocate", size=SIZE)
        owner.ask("fill", value=0)
        writer.ask("open", handle=handle, size=SIZE)
        try:
            if sleeper is not None:
                pid = writer.ask("fork_sleeper", **sleeper)
            writer.ask("count", seconds=KERNEL_SECONDS, launches=KERNELS)
            _require_counting(owner)
            writer.kill()
            before = owner.ask("counted")
            written = _seconds_of_writes(owner, before)
        finally:
            if pid:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
    facts = {"seconds_of_writes_after_the_reap": written, "sleeper": sleeper}
    return {"answer": "yes" if written is None else "no", **facts}


def _require_counting(owner: Actor) -> None:
    """Waits until the kernels write; raises :class:`ActorError` if they never do."""
    limit, first = time.monotonic() + PATIENCE, owner.ask("counted")
    while owner.ask("counted") == first:
        if time.monotonic() > limit:
            raise ActorError("the kernels never wrote")
        time.sleep(0.01)


def _seconds_of_writes(owner: Actor, before: int) -> float | None:
    """Returns for how long the word changed, at most the patience; None if it never changed."""
    begin = time.monotonic()
    changed: float | None = None
    while time.monotonic() - begin < PATIENCE:
        time.sleep(LOOK_SECONDS)
        found = owner.ask("counted")
        if found == before:
            break
        before, changed = found, round(time.monotonic() - begin, 1)
    return changed
