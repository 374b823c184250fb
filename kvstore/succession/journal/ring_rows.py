"""The rows of a journal that are records of its ring, the last one of each key."""

from collections.abc import Callable, Iterable, Iterator
from struct import Struct
from typing import Final, TypeAlias

from kvstore.succession.journal.live_records import Payload

# Kinds of records, which are none of the core's.
ROW, CLEARED = 128, 129
# Kind, length of the key, serial number.
_FORM: Final = Struct("<BxxxIQ")

Append: TypeAlias = Callable[..., object]


class RingRows:
    """Rows of bytes by keys of bytes, each the last record of its key. Not thread-safe.

    A record of a row is kept while it is the last one of its key, and one that clears a row never:
    all records before it left the ring before it does.
    """

    def __init__(self) -> None:
        # The serial number of the last record of each key. A copy of a record has its number.
        self._serial_of: dict[bytes, int] = {}
        self._last_serial = 0

    def restore(self, records: Iterable[Payload]) -> None:
        """Remembers the records of an earlier process, given in their order."""
        for record in records:
            if record[0] in (ROW, CLEARED):
                serial, key, _ = _read(record)
                self._last_serial = max(self._last_serial, serial)
                self._serial_of.pop(key, None)
                if record[0] == ROW:
                    self._serial_of[key] = serial

    def put(self, append: Append, key: bytes, row: bytes) -> None:
        """Appends the row of a key, in place of the one before."""
        serial = self._last_serial = self._last_serial + 1
        append(_FORM.pack(ROW, len(key), serial), key, row)
        # The append may clean: until it is done the row before is the last one.
        self._serial_of[key] = serial

    def clear(self, append: Append, key: bytes) -> None:
        """Appends that a key has no row, if it has one."""
        if key in self._serial_of:
            append(_FORM.pack(CLEARED, len(key), self._last_serial), key)
            del self._serial_of[key]

    def __contains__(self, key: object) -> bool:
        return key in self._serial_of

    def is_live(self, record: Payload) -> bool:
        """Returns True if a record is the row of its key."""
        serial, key, _ = _read(record)
        return record[0] == ROW and self._serial_of.get(key) == serial

    def rows(self, records: Iterable[Payload]) -> Iterator[tuple[bytes, bytes]]:
        """Yields the key and the row of each record that is live."""
        for record in records:
            if record[0] == ROW and self.is_live(record):
                _, key, row = _read(record)
                yield key, row


def _read(record: Payload) -> tuple[int, bytes, bytes]:
    """Returns the serial number, the key and the row of a record."""
    _, size, serial = _FORM.unpack_from(record)
    end = _FORM.size + size
    return serial, bytes(record[_FORM.size : end]), bytes(record[end:])
