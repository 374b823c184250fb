"""Sharing memory of ``cuMemCreate`` by a descriptor, read-only too."""

import os
from typing import Any, Final

from gpu_machine.probes.actor import Actor, ActorError
from gpu_machine.probes.sharing import GIB, LARGE, MOST_OF_IT, room_after

SMALL: Final = 64 << 20


def by_descriptor() -> dict[str, Any]:
    """A child maps memory by its descriptor; the mapping outlives the exporter's SIGKILL."""
    with Actor() as observer, Actor() as exporter, Actor() as importer:
        for each in (observer, exporter, importer):
            each.ask("start")
        facts: dict[str, Any] = {"granularity": exporter.ask("granularity")}
        descriptor = exporter.ask("create", size=LARGE)
        exporter.ask("fill", value=5)
        seconds = importer.ask("take_in", descriptor=descriptor, size=LARGE, writable=True)
        os.close(descriptor)
        facts["map_ms"] = round(seconds * 1e3, 3)
        exporter.kill()
        facts["readable_after_the_kill"] = importer.ask("holds", value=5)
        held = observer.ask("room")
        importer.ask("unmap")
        back = room_after(observer, held + MOST_OF_IT)
    facts["gib_back_at_the_unmap"] = round((back - held) / GIB, 2)
    right = facts["readable_after_the_kill"] and back - held >= MOST_OF_IT
    return {"answer": "yes" if right else "no", **facts}


def by_descriptor_for_another_user() -> dict[str, Any]:
    """A child of another uid maps memory by its descriptor."""
    with Actor() as exporter, Actor() as importer:
        importer.ask("become")
        return _read(exporter, importer)


def by_descriptor_read_only() -> dict[str, Any]:
    """A child maps memory for reading: its kernel's write fails, and nothing changes."""
    with Actor() as exporter, Actor() as importer:
        facts = _read(exporter, importer)
        if facts["answer"] == "no":
            return facts
        try:
            importer.ask("write_by_kernel")
            facts["write"] = "went through"
        except ActorError as error:
            facts["write"] = str(error)
        facts["unchanged"] = exporter.ask("holds", value=6)
    refused = facts["write"] != "went through" and facts["unchanged"]
    return {**facts, "answer": "yes" if refused else "no"}


def _read(exporter: Actor, importer: Actor) -> dict[str, Any]:
    exporter.ask("start")
    importer.ask("start")
    descriptor = exporter.ask("create", size=SMALL)
    try:
        exporter.ask("fill", value=6)
        importer.ask("take_in", descriptor=descriptor, size=SMALL, writable=False)
        reads = importer.ask("holds", value=6)
    except ActorError as error:
        return {"answer": "no", "why": str(error)}
    finally:
        os.close(descriptor)
    return {"answer": "yes" if reads else "no", "reads": reads}
