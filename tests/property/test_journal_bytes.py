"""Records and rows of a journal as bytes: what was written is what is read."""

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
    ExtentRow,
    HoldRow,
    LeaseRow,
    MappingRow,
    NamedPinRow,
    NamespaceRow,
    ProcessRow,
    RemovalRow,
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

U8, U32, U64 = (st.integers(0, (1 << bits) - 1) for bits in (8, 32, 64))
TIERS = st.none() | st.lists(st.tuples(U32, U8)).map(tuple)


def numbers(count: int) -> st.SearchStrategy["array[int]"]:
    """Returns arrays of so many numbers."""
    return st.lists(U64, min_size=count, max_size=count).map(lambda each: array("Q", each))


@st.composite
def pages_records(draw: st.DrawFn) -> PagesRecord:
    """Draws a record of pages."""
    count = draw(st.integers(0, 5))
    kind = draw(st.sampled_from([RecordKind.INSERT, RecordKind.COPY]))
    return PagesRecord(
        *(kind, draw(U8), draw(U32), draw(U32)),
        *(draw(U64), draw(U64), draw(U64), draw(U64)),
        *(draw(U32), draw(U32), draw(U32), draw(U64)),
        draw(numbers(count)),
        draw(numbers(count)),
        draw(numbers(count) | numbers(0)),
        draw(st.binary(max_size=40)),
    )


@st.composite
def reserve_records(draw: st.DrawFn) -> ReserveRecord:
    """Draws a record of a reservation."""
    count = draw(st.integers(0, 5))
    return ReserveRecord(
        *(draw(U64), draw(U32), draw(U32), draw(U64), draw(U64)),
        *(draw(U32), draw(U32), draw(U32)),
        draw(numbers(count)),
        draw(numbers(count)),
        draw(st.binary(min_size=count, max_size=count)),
        draw(numbers(3) | numbers(0)),
        draw(st.lists(st.tuples(U32, U32, st.integers(0, 1)), max_size=3).map(tuple)),
        draw(TIERS),
    )


DETACHED = st.builds(DetachRecord, U32, U64, U64)
ENDS = st.builds(EndRecord, U32, U64, U64, st.binary(max_size=9), st.none() | U32)

ABORTED = st.builds(AbortRecord, st.booleans(), U32, U64, U64)
ENDED_LEASES = st.builds(LeaseEndedRecord, st.text(), st.binary())


@given(pages_records() | reserve_records() | DETACHED | ENDS | ABORTED | ENDED_LEASES)
def test_a_record_is_read_as_it_was_written(record: Record) -> None:
    """Every field of every record comes back."""
    assert decode(encode(record)) == record


@pytest.mark.parametrize("data", [b"", b"\x00", b"\x63 is no kind"])
def test_what_is_no_record_is_refused(data: bytes) -> None:
    """Bytes of an unknown kind are no record."""
    with pytest.raises(ValueError, match="a record of kind"):
        decode(data)


LAYOUTS = st.builds(
    lambda tokens, content: PageLayout(
        tokens,
        content.page_bytes(tokens) if isinstance(content, PagedContent) else 77,
        2,
        content,
    ),
    st.integers(1, 9),
    st.sampled_from(
        [PagedContent(2, 3, 4, "float16"), OpaqueContent(b"print", divides_by_token=True)]
    ),
)
IDENTITIES = st.builds(NamespaceIdentity, st.binary(), st.binary(), st.binary(), st.text())
IDS = st.lists(U32, max_size=3).map(tuple)
ROWS: dict[Table, st.SearchStrategy[Row]] = {
    Table.COUNTERS: st.builds(CounterRow, U64),
    Table.NAMESPACES: st.builds(
        NamespaceRow, U32, st.binary(), st.text(), IDENTITIES, LAYOUTS, IDS, st.booleans()
    ),
    Table.EXTENTS: st.builds(ExtentRow, U32, U32, st.text(), U64, U32, U8, U32, U64, st.booleans()),
    Table.LEASES: st.builds(
        *(LeaseRow, U32, st.text(), st.binary(), st.binary(), st.floats(0, 9)),
        *(st.lists(st.text()).map(tuple), st.text(), IDS, st.booleans()),
    ),
    Table.PROCESSES: st.builds(ProcessRow, U64, U32, U32, U32),
    Table.MAPPINGS: st.builds(MappingRow, U64, U32, IDS),
    Table.NAMED_PINS: st.builds(
        NamedPinRow, U64, U32, st.text(), U64, TIERS, st.floats(0), st.binary()
    ),
    Table.HOLDS: st.builds(
        *(HoldRow, U32, st.integers(1, 2), U64, U32, U64, TIERS),
        *(st.none() | U64, st.none() | U64, U32),
        st.lists(st.tuples(U32, U32, U32), max_size=2).map(tuple),
        st.lists(st.tuples(U64, U8), max_size=3).map(tuple),
    ),
    Table.REMOVALS: st.builds(RemovalRow, U64, st.binary(), st.binary(), st.none() | st.binary()),
}


@pytest.mark.parametrize("table", Table, ids=lambda table: table.name)
def test_a_row_is_read_as_it_was_written(table: Table) -> None:
    """Every field of every row comes back."""

    @given(ROWS[table])
    def comes_back(row: Row) -> None:
        assert decode_row(table, encode_row(row)) == row

    comes_back()


PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(),
    lambda values: st.lists(values, max_size=3).map(tuple),
    max_leaves=9,
)


@given(st.lists(PLAIN).map(tuple))
def test_plain_values_come_back(values: tuple[object, ...]) -> None:
    """Values come back with their types."""
    assert repr(unpack(pack(values))) == repr(values)


@given(st.lists(PLAIN).map(tuple), st.data())
def test_what_is_cut_off_is_refused(values: tuple[object, ...], data: st.DataObject) -> None:
    """No beginning of some values is a tuple of values, nor is anything longer."""
    packed = pack(values)
    cut = packed[: data.draw(st.integers(0, len(packed) - 1))]
    for wrong in (cut, packed + b"\x00"):
        with pytest.raises(ValueError, match="bytes are"):
            unpack(wrong)


def test_what_is_not_plain_is_refused() -> None:
    """Neither a list nor an unknown kind of value is plain."""
    with pytest.raises(TypeError, match="no plain value"):
        pack(([],))
    with pytest.raises(ValueError, match="no values"):
        unpack(b"\x01\x00\x00\x00\x63\x00\x00\x00\x00")
    with pytest.raises(ValueError, match="no values"):
        unpack(b"\x01\x00\x00\x00\x06\x01\x00\x00\x00\xff")
