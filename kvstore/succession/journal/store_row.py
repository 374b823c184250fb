"""The store's own row in its journal, and the names of all rows."""

from collections.abc import Hashable
from typing import Final, NamedTuple

from kvstore.core.journal.packing import pack, unpack
from kvstore.core.journal.rows import HoldKey, Table

# The version of the records and rows. Another one cannot be recovered.
JOURNAL_VERSION: Final = 1
# The key of the store's own row. All others begin with the number of their table.
STORE_KEY: Final = b"\0"


class StoreRow(NamedTuple):
    """The store that a journal belongs to.

    ``store_epoch`` stays the same for as long as the cache does, and ``instance`` counts the
    processes that wrote the journal. ``credential_key`` makes the credentials of clients.
    ``settings`` are the bytes of all that has to be equal for a recovery.
    """

    store_epoch: int
    instance: int
    credential_key: bytes
    settings: bytes


def row_name(table: Table, key: Hashable) -> bytes:
    """Returns the key of a row among those of all tables."""
    return bytes((table,)) + pack((key,))


def table_and_key(name: bytes) -> tuple[Table, Hashable]:
    """Returns the table and the key that ``row_name`` made a name of."""
    (key,) = unpack(name[1:])
    table = Table(name[0])
    return table, HoldKey(*key) if table is Table.HOLDS else key
