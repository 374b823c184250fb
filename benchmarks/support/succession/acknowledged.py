"""The pages that the store acknowledged to its clients, by their slots."""

import os
import struct
from collections.abc import Iterable, Iterator
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

from kvstore_client import PageRef
from support.succession.conversations import PAGE_TOKENS, SHARED_TOKENS, first_with

# Kind, conversation, end of the page in tokens, extent, slot, generation, checksum.
_ROW = struct.Struct("<IIIIIQQ")


class Kind(IntEnum):
    """The kinds of rows."""

    PAGE = 0
    """The store answered that it has a page."""
    LEAVING = 1
    """A conversation's own pages are about to be removed."""
    REMOVED = 2
    """The store answered that it removed them."""


class Row(NamedTuple):
    """One acknowledgement. ``end`` counts the conversation's tokens through the page's end."""

    kind: Kind
    conversation: int
    end: int = 0
    extent_id: int = 0
    slot: int = 0
    generation: int = 0
    checksum: int = 0

    @property
    def place(self) -> PageRef:
        """The page's slot."""
        return PageRef(self.extent_id, self.slot)

    @property
    def number(self) -> int:
        """The page's number within its conversation."""
        return (self.end - 1) // PAGE_TOKENS

    @property
    def whole(self) -> bool:
        """True if the page has as many tokens as it can."""
        return self.end % PAGE_TOKENS == 0


class RowWriter:
    """Appends rows to a file. What was written is there, also if the process is killed."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def write(self, rows: Iterable[Row]) -> None:
        """Appends rows."""
        data = b"".join(_ROW.pack(*row) for row in rows)
        assert os.write(self._file, data) == len(data)


class Acknowledged:
    """All acknowledgements in a folder of files, by place: a slot has one page at a time.

    ``conflicts`` counts generations of a slot that were acknowledged for two pages.
    ``leaving`` has the conversations whose removal began, ``removed`` those without own pages.
    """

    def __init__(self, folder: Path) -> None:
        self.pages: dict[PageRef, Row] = {}
        self.leaving: set[int] = set()
        self.removed: set[int] = set()
        self.row_count = 0
        self.conflicts = 0
        self._folder = folder
        self._offsets: dict[Path, int] = {}
        self._longest: dict[tuple[int, int], int] = {}

    def read(self) -> None:
        """Takes the rows that were appended since the last call."""
        for row in self._appended():
            self.row_count += 1
            if row.kind is Kind.PAGE:
                self._take(row)
            else:
                (self.leaving if row.kind is Kind.LEAVING else self.removed).add(row.conversation)

    def forget(self, row: Row) -> None:
        """Drops a page whose slot the store freed."""
        if self.pages.get(row.place) == row:
            del self.pages[row.place]

    def expected(self, row: Row) -> bool:
        """Returns whether a match has to find a page, if its generation has not changed.

        A fuller page takes the place of a partial one, which may be held after that.
        """
        if row.end > SHARED_TOKENS and row.conversation in self.leaving:
            return False
        return self._longest[row.conversation, row.number] == row.end

    def _take(self, row: Row) -> None:
        row = row._replace(conversation=first_with(row.conversation, row.end))
        name = row.conversation, row.number
        self._longest[name] = max(row.end, self._longest.get(name, 0))
        known = self.pages.get(row.place)
        if known is None or row.generation > known.generation:
            self.pages[row.place] = row
        elif row.generation == known.generation and row != known:
            # A partial page may be answered with the fuller one that is in its place.
            if name != (known.conversation, known.number) or row.checksum != known.checksum:
                self.conflicts += 1
            elif row.end > known.end:
                self.pages[row.place] = row

    def _appended(self) -> Iterator[Row]:
        for path in sorted(self._folder.iterdir()):
            offset = self._offsets.get(path, 0)
            with path.open("rb") as file:
                file.seek(offset)
                data = file.read()
            whole = len(data) - len(data) % _ROW.size
            self._offsets[path] = offset + whole
            for kind, *values in _ROW.iter_unpack(data[:whole]):
                yield Row(Kind(kind), *values)
