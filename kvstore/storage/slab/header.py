"""A slot's header: the page in the slot, and the checksum of its bytes."""

import struct
from collections.abc import Iterator
from typing import NamedTuple

from xxhash import xxh3_64_intdigest

from kvstore.storage.page_store import PageKey

FORMAT_VERSION = 1
# Version, reserved, valid tokens; digests of namespace, page and parent; generation, checksum of
# the content; then the header's own checksum.
_FIELDS = struct.Struct("<HHI32s32s32sQQ")
_CHECKSUM = struct.Struct("<Q")
_PLACE = struct.Struct("<16sQQ")
HEADER_BYTES = _FIELDS.size + _CHECKSUM.size
EMPTY = bytes(HEADER_BYTES)
_NO_FIELDS = bytes(_FIELDS.size)
# The bytes of a header that hold the parent's digest.
PARENT = slice(72, 104)


class Place(NamedTuple):
    """The place that a header belongs to. At any other place the header is foreign.

    ``slab`` is the file's id of 16 bytes. ``carving`` is the number under which the segment was
    cut into slots, and ``number`` is the slot's number in the segment.
    """

    slab: bytes
    carving: int
    number: int


class SlotHeader(NamedTuple):
    """The page in a slot. ``parent`` is the digest of the page before, or the namespace's.

    ``checksum`` is xxh3-64 of the page's bytes, without the slot's padding.
    """

    key: PageKey
    parent: bytes
    valid_tokens: int
    generation: int
    checksum: int

    def encode(self, place: Place) -> bytes:
        """Returns the header's ``HEADER_BYTES`` bytes for a place."""
        fields = _FIELDS.pack(
            *(
                FORMAT_VERSION,
                0,
                self.valid_tokens,
                self.key.namespace,
                self.key.digest,
                self.parent,
            ),
            *(self.generation, self.checksum),
        )
        return fields + _CHECKSUM.pack(_sum(fields, place))


def decode(raw: bytes, place: Place) -> SlotHeader | None:
    """Returns a slot's header, or None if it is torn, foreign, or of another format."""
    fields = raw[: _FIELDS.size]
    (checksum,) = _CHECKSUM.unpack_from(raw, _FIELDS.size)
    if checksum != _sum(fields, place):
        return None
    version, _, valid_tokens, namespace, digest, parent, generation, content = _FIELDS.unpack(
        fields
    )
    if version != FORMAT_VERSION:
        return None
    return SlotHeader(PageKey(namespace, digest), parent, valid_tokens, generation, content)


class Scanned(NamedTuple):
    """A header of a table that is not empty: its number, and its fields if it is good."""

    number: int
    good: bool
    namespace: bytes
    digest: bytes
    generation: int


def scan(table: bytes, slab: bytes, carving: int, count: int) -> Iterator[Scanned]:
    """Yields the headers of a whole table, each checked as by ``decode``. Microseconds each."""
    for number in range(count):
        start = number * HEADER_BYTES
        fields = table[start : start + _FIELDS.size]
        if fields == _NO_FIELDS and table[start : start + HEADER_BYTES] == EMPTY:
            continue
        version, _, _, namespace, digest, _, generation, _ = _FIELDS.unpack(fields)
        (checksum,) = _CHECKSUM.unpack_from(table, start + _FIELDS.size)
        good = version == FORMAT_VERSION and checksum == xxh3_64_intdigest(
            fields + _PLACE.pack(slab, carving, number)
        )
        yield Scanned(number, good, namespace, digest, generation)


def _sum(fields: bytes, place: Place) -> int:
    return xxh3_64_intdigest(fields + _PLACE.pack(*place))
