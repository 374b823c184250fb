"""A disk that loses its power: what of all writes is there, if only synced ones have to be."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from threading import Lock
from typing import NamedTuple

import pytest

from kvstore.storage.slab.file import SlabFile
from kvstore.storage.slab.layout import ALIGNMENT


class Write(NamedTuple):
    """Bytes that went to the disk, and may be lost until the next sync."""

    offset: int
    data: bytes


class Sync(NamedTuple):
    """From here on all writes before are there for good."""


class Said(NamedTuple):
    """Something that a caller was told, or said itself, about a page."""

    what: str
    number: int


@dataclass
class PowerLog:
    """Every write of a slab, every sync, and what was said, in their order."""

    events: list[Write | Sync | Said] = field(default_factory=list)
    mutex: Lock = field(default_factory=Lock)

    def listen(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Takes note of what slabs write from here on; they write as ever."""
        write, sync = SlabFile.write, SlabFile.sync

        def writing(file: SlabFile, offset: int, views: Sequence[memoryview]) -> None:
            write(file, offset, views)
            self.add(Write(offset, b"".join(views)))

        def syncing(file: SlabFile) -> None:
            # What is written from here on this sync may miss.
            self.add(Sync())
            sync(file)

        monkeypatch.setattr(SlabFile, "write", writing)
        monkeypatch.setattr(SlabFile, "sync", syncing)

    def add(self, event: Write | Sync | Said) -> None:
        """Takes note of something; from any thread."""
        with self.mutex:
            self.events.append(event)

    def said(self, what: str, at: int) -> set[int]:
        """Returns the pages of which something was said before event ``at``."""
        return {
            each.number for each in self.events[:at] if isinstance(each, Said) and each.what == what
        }

    def leave_disk(self, path: Path, before: bytes, at: int, rng: Random) -> None:
        """Makes the file that is there when the power is lost at event ``at``.

        Of each write since the last sync any 4 KiB may be there or not.
        """
        image = bytearray(before)
        synced = max(
            (number for number, each in enumerate(self.events[:at]) if isinstance(each, Sync)),
            default=0,
        )
        for number, each in enumerate(self.events[:at]):
            if not isinstance(each, Write):
                continue
            for start in range(0, len(each.data), ALIGNMENT):
                if number < synced or rng.random() < 0.5:
                    piece = each.data[start : start + ALIGNMENT]
                    image[each.offset + start : each.offset + start + len(piece)] = piece
        path.write_bytes(image)
