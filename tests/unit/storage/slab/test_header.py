"""A slot's header is whole and in its place, or it is nothing."""

import pytest

from kvstore.storage.page_store import PageKey
from kvstore.storage.slab.header import EMPTY, HEADER_BYTES, PARENT, Place, SlotHeader, decode, scan

SLAB = b"0123456789abcdef"
PLACE = Place(SLAB, 7, 3)
HEADER = SlotHeader(PageKey(b"n" * 32, b"d" * 32), b"p" * 32, 16, 99, (1 << 64) - 1)
RAW = HEADER.encode(PLACE)


def test_a_header_says_what_it_was_told() -> None:
    """Each field comes back; the parent lies where others look for it."""
    assert len(RAW) == HEADER_BYTES == 128
    assert decode(RAW, PLACE) == HEADER
    assert RAW[PARENT] == HEADER.parent


@pytest.mark.parametrize("at", range(0, HEADER_BYTES, 5))
def test_a_changed_byte_is_seen_wherever_it_is(at: int) -> None:
    """A torn header is none."""
    torn = RAW[:at] + bytes([RAW[at] ^ 1]) + RAW[at + 1 :]
    assert decode(torn, PLACE) is None


@pytest.mark.parametrize(
    "place", [Place(SLAB, 7, 4), Place(SLAB, 8, 3), Place(b"another slab 123", 7, 3)]
)
def test_a_header_is_foreign_anywhere_else(place: Place) -> None:
    """Another slot, another cut of the segment, or another file: none of them has this page."""
    assert decode(RAW, place) is None


def test_an_empty_header_is_none() -> None:
    """A slot whose header was emptied says nothing."""
    assert decode(EMPTY, PLACE) is None


def test_a_scan_finds_what_decode_finds() -> None:
    """Empty headers are passed over; each other is named, good or not."""
    torn = RAW[:-1] + bytes([RAW[-1] ^ 1])
    almost_empty = EMPTY[:-1] + b"\x01"
    table = EMPTY * 3 + RAW + RAW + torn + almost_empty
    found = list(scan(table, SLAB, 7, len(table) // HEADER_BYTES))
    assert [(each.number, each.good) for each in found] == [
        (3, True),
        (4, False),
        (5, False),
        (6, False),
    ]
    assert PageKey(found[0].namespace, found[0].digest) == HEADER.key
    assert found[0].generation == HEADER.generation
