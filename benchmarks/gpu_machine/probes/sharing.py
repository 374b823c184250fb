"""Mapping another process's memory by CUDA IPC: which processes can, and which memory stays."""

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from gpu_machine.probes.actor import Actor, ActorError

MIB: Final = 1 << 20
GIB: Final = 1 << 30
SIZE: Final = 64 * MIB
# So large that a change by other processes cannot be mistaken for it.
LARGE: Final = 4 * GIB
MOST_OF_IT: Final = 3 * GIB
PATIENCE: Final = 10.0
IN_A_NAMESPACE: Final = ("unshare", "--pid", "--fork", "--kill-child")


def mapped() -> dict[str, Any]:
    """A child maps memory, reads what is there, and its writes are seen."""
    with Actor() as exporter, Actor() as importer:
        return _share(exporter, importer)


def importer_of_another_user() -> dict[str, Any]:
    """A child of another uid maps memory."""
    with Actor() as exporter, Actor() as importer:
        importer.ask("become")
        return _share(exporter, importer)


def exporter_of_another_user() -> dict[str, Any]:
    """A child maps memory of a process of another uid."""
    with Actor() as exporter, Actor() as importer:
        exporter.ask("become")
        return _share(exporter, importer)


def importer_in_a_pid_namespace() -> dict[str, Any]:
    """A child in a pid namespace of its own maps memory of a process outside."""
    with Actor() as exporter, _namespaced() as importer:
        return _share(exporter, importer)


def equal_pids() -> dict[str, Any]:
    """Exporter and importer are process 1, each in a pid namespace of its own, as in containers."""
    with _namespaced() as exporter, _namespaced() as importer:
        return _share(exporter, importer)


def exporter_killed() -> dict[str, Any]:
    """A mapping outlives its exporter's SIGKILL, and the memory returns with the last mapping."""
    with Actor() as observer, Actor() as exporter, Actor() as importer:
        for each in (observer, exporter, importer):
            each.ask("start")
        handle = exporter.ask("allocate", size=LARGE)
        exporter.ask("fill", value=7)
        importer.ask("open", handle=handle, size=LARGE)
        full = observer.ask("room")
        exporter.kill()
        readable = importer.ask("holds", value=7)
        importer.ask("fill", value=8)
        writable = importer.ask("holds", value=8)
        held = observer.ask("room")
        importer.ask("close")
        back = room_after(observer, held + MOST_OF_IT)
    facts = {
        "readable_after_the_kill": readable,
        "writable_after_the_kill": writable,
        "gib_back_at_the_kill": round((held - full) / GIB, 2),
        "gib_back_at_the_close": round((back - held) / GIB, 2),
    }
    right = readable and writable and held - full < MOST_OF_IT <= back - held
    return {"answer": "yes" if right else "no", **facts}


def room_after(observer: Actor, wanted: int) -> int:
    """Returns the device's free bytes once they are ``wanted``, or after the patience."""
    limit = time.monotonic() + PATIENCE
    while (found := int(observer.ask("room"))) < wanted and time.monotonic() < limit:
        time.sleep(0.1)
    return found


@contextmanager
def _namespaced() -> Iterator[Actor]:
    if shutil.which(IN_A_NAMESPACE[0]) is None:
        raise ActorError("unshare is not in PATH: install util-linux")
    with Actor(*IN_A_NAMESPACE) as made:
        yield made


def _share(exporter: Actor, importer: Actor) -> dict[str, Any]:
    """Answers whether the importer sees the exporter's bytes and the exporter the importer's."""
    pids = exporter.ask("start"), importer.ask("start")
    handle = exporter.ask("allocate", size=SIZE)
    exporter.ask("fill", value=3)
    facts: dict[str, Any] = {"pids": pids}
    try:
        facts["open_ms"] = round(importer.ask("open", handle=handle, size=SIZE) * 1e3, 3)
        facts["reads"] = importer.ask("holds", value=3)
        importer.ask("fill", value=4)
        facts["writes_are_seen"] = exporter.ask("holds", value=4)
        facts["close_ms"] = round(importer.ask("close") * 1e3, 3)
    except ActorError as error:
        return {"answer": "no", "why": str(error), **facts}
    right = facts["reads"] and facts["writes_are_seen"]
    return {"answer": "yes" if right else "no", **facts}
