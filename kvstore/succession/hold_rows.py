"""The holds of leases as rows of 64 bytes, of which each verb writes or clears one."""

from collections.abc import Hashable, Iterator
from struct import Struct
from typing import Final

from kvstore.core.journal.rows import HoldRow
from kvstore.journal import RowTable, TableFull

NAME: Final = "holds"
# Kind, flags, valid tokens, lease, namespace, hold, page, next token, source, two runs of tiers.
FORM: Final = Struct("<BBxxIIIQQQQII")
_HAS_TOKEN, _HAS_SOURCE, _HAS_TIERS = 1, 2, 4
_MOST_RUNS: Final = 2
# A run is its end and its tier, which is 1 or 2.
_TIER_BITS: Final = 2
_TIER_MASK: Final = (1 << _TIER_BITS) - 1
# A named tuple's constructor costs a Python frame.
_new_tuple = tuple.__new__


class HoldRows:
    """Holds that are small enough for a row, by key. Not thread-safe.

    A row has no pages of KV cache groups, and at most two runs of tiers. It is written once, so a
    hold that changes has to go elsewhere.
    """

    def __init__(self, table: RowTable) -> None:
        """The table has rows of ``FORM``."""
        self._table = table
        self._row_of: dict[Hashable, int] = {}
        for number, fields in table.rows():
            self._row_of[_row(fields).key] = number

    def put(self, key: Hashable, row: HoldRow) -> bool:
        """Writes a row. Returns False, and changes nothing, if it does not fit or is there."""
        lease, kind, hold_id, namespace, page_id, tiers, token, source, valid, groups, pages = row
        flags = first = second = 0
        if groups or pages or key in self._row_of:
            return False
        if tiers is not None:
            if len(tiers) > _MOST_RUNS:
                return False
            flags = _HAS_TIERS
            runs = [end << _TIER_BITS | tier for end, tier in tiers]
            first, second = (*runs, 0, 0)[:_MOST_RUNS]
        if token is not None:
            flags |= _HAS_TOKEN
        if source is not None:
            flags |= _HAS_SOURCE
        numbers = (page_id, token or 0, source or 0, first, second)
        try:
            number = self._table.add(kind, flags, valid, lease, namespace, hold_id, *numbers)
        except TableFull:
            return False
        self._row_of[key] = number
        return True

    def clear(self, key: Hashable) -> bool:
        """Clears the row of a key. Returns False if there is none."""
        number = self._row_of.pop(key, None)
        if number is None:
            return False
        self._table.remove(number)
        return True

    def __contains__(self, key: object) -> bool:
        return key in self._row_of

    def rows(self) -> Iterator[HoldRow]:
        """Yields all rows. None may be put or cleared before the last one was read."""
        return (_row(fields) for _, fields in self._table.rows())


def _row(fields: tuple[int, ...]) -> HoldRow:
    kind, flags, valid, lease, namespace, hold_id, page_id, token, source, *runs = fields
    tiers = tuple((run >> _TIER_BITS, run & _TIER_MASK) for run in runs if run)
    return HoldRow(
        *(lease, kind, hold_id, namespace, page_id),
        tiers if flags & _HAS_TIERS else None,
        token if flags & _HAS_TOKEN else None,
        source if flags & _HAS_SOURCE else None,
        valid,
    )
