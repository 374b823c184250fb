"""Records and plain values as bytes: one of each kind, and bytes that are none."""

from array import array

import pytest

from kvstore.core.journal.packing import pack, unpack
from kvstore.core.journal.records import (
    AbortRecord,
    DetachRecord,
    EndRecord,
    LeaseEndedRecord,
    PagesRecord,
    Record,
    RecordKind,
    ReserveRecord,
    decode,
    encode,
)
from kvstore.core.journal.rows import (
    CounterRow,
    HoldRow,
    NamespaceRow,
    Row,
    Table,
    decode_row,
    encode_row,
)
from kvstore.core.values.layout import (
    NamespaceIdentity,
    OpaqueContent,
    PagedContent,
    PageLayout,
)

SLOTS = array("Q", [1 << 32, 2 << 32])
ONE = array("Q", [7])
RECORDS = [
    PagesRecord(RecordKind.INSERT, *range(1, 12), SLOTS, SLOTS, SLOTS, b"tokens"),
    PagesRecord(RecordKind.COPY, *range(1, 12), SLOTS, SLOTS, array("Q"), b""),
    ReserveRecord(*range(8), SLOTS, SLOTS, b"\0\1"),
    ReserveRecord(*range(8), SLOTS, SLOTS, b"\0\1", ONE, ((1, 2, 1),), ((3, 2),)),
    DetachRecord(1, 2, 3),
    EndRecord(1, 2, 3, b"tail", None),
    EndRecord(1, 2, 3, b"", 0),
    AbortRecord(leaves_tombstone=True, lease=1, reservation_id=2, number=3),
    LeaseEndedRecord("tenant", b"lease"),
]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_a_record_comes_back(record: Record) -> None:
    """A record is read as it was written."""
    assert decode(encode(record)) == record


@pytest.mark.parametrize("data", [b"", b"\x63"])
def test_other_bytes_are_no_record(data: bytes) -> None:
    """Bytes of no known kind are refused."""
    with pytest.raises(ValueError, match="a record of kind"):
        decode(data)


PAGED = PageLayout(2, 192, 1, PagedContent(2, 3, 4, "float16"))
OPAQUE = PageLayout(2, 64, 1, OpaqueContent(b"print"))
IDENTITY = NamespaceIdentity(b"model", b"adapter", b"salt", "name")
ROWS = [
    (Table.COUNTERS, CounterRow(1 << 40)),
    (Table.NAMESPACES, NamespaceRow(1, b"id", "tenant", IDENTITY, PAGED, (1, 2), deleted=True)),
    (Table.NAMESPACES, NamespaceRow(1, b"id", "tenant", IDENTITY, OPAQUE, ())),
    (Table.HOLDS, HoldRow(1, 1, 2, 3, 4)),
    (Table.HOLDS, HoldRow(1, 1, 2, 3, 4, ((1, 2),), 0, 9, 5, ((1, 0, 1),), ((6, 1),))),
]


@pytest.mark.parametrize(("table", "row"), ROWS)
def test_a_row_comes_back(table: Table, row: Row) -> None:
    """A row is read as it was written."""
    assert decode_row(table, encode_row(row)) == row


def test_plain_values_come_back() -> None:
    """Values of all kinds come back with their types."""
    values = (None, True, False, -1, 1 << 64, 0.5, "word", b"bytes", (1, (2,)))
    assert unpack(pack(values)) == values


def test_other_values_are_refused() -> None:
    """A list is no plain value."""
    with pytest.raises(TypeError, match="no plain value"):
        pack(([],))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x01\0\0\0",
        b"\x01\0\0\0\x05\x09\0\0\0short",
        b"\x01\0\0\0\x63\0\0\0\0",
        b"\x01\0\0\0\x04\x01\0\0\0x",
        b"\x01\0\0\0\x06\x01\0\0\0\xff",
        b"\0\0\0\0more",
    ],
    ids=["empty", "no value", "cut off", "kind", "number", "text", "more"],
)
def test_other_bytes_are_no_values(data: bytes) -> None:
    """Bytes that are cut off, too long or of an unknown kind are refused."""
    with pytest.raises(ValueError, match="bytes are"):
        unpack(data)
