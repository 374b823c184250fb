"""The first 128 bytes of each piece of the journal's memory.

All sums in such memory are xxh64. xxh3 is faster by itself, but slows what the core does after it
on some processors (decision 47).
"""

import struct
from typing import Final, NamedTuple

from xxhash import xxh64_intdigest

from kvstore.ring.errors import JournalDamaged, NeverCreated, OtherVersion, WrongMemory

FORMAT_VERSION: Final = 2
HEADER_BYTES: Final = 128
IDENTITY_BYTES: Final = 16
WORD_MASK: Final = (1 << 64) - 1
# The word that commits the header. It and the version after it stay at their places for ever.
MAGIC: Final = int.from_bytes(b"kvstjrnl", "little")
_VERSION: Final = struct.Struct("=Q")
_FIELDS: Final = struct.Struct("=32s16s4Q")
_FIELDS_AT: Final = 16
_SUM_AT: Final = _FIELDS_AT + _FIELDS.size
_KIND_BYTES: Final = 32
# Bytes in one piece.
Payload = bytes | bytearray | memoryview


class MemoryHeader(NamedTuple):
    """The structure that a memory has.

    ``identity`` is 16 random bytes of one creation: bytes of an earlier one are never taken for
    its own. ``kind`` is at most 32 ASCII characters. ``sizes`` are four numbers of the structure.
    """

    kind: str
    identity: bytes
    sizes: tuple[int, int, int, int]

    @property
    def salt(self) -> int:
        """The part of the identity that each sum of the memory begins from. Below 2**62."""
        return int.from_bytes(self.identity[:8], "little") >> 2

    def write(self, memory: memoryview) -> None:
        """Writes all but the committing word, which it clears first."""
        if len(self.identity) != IDENTITY_BYTES:
            raise ValueError(f"an identity has {IDENTITY_BYTES} bytes, not {len(self.identity)}")
        if len(self.kind) > _KIND_BYTES:
            raise ValueError(f"{self.kind!r} is longer than {_KIND_BYTES} characters")
        withdraw(memory)
        version = _VERSION.pack(FORMAT_VERSION)
        fields = _FIELDS.pack(self.kind.encode(), self.identity, *self.sizes)
        memory[8:_FIELDS_AT] = version
        memory[_FIELDS_AT:_SUM_AT] = fields
        memory.cast("Q")[_SUM_AT >> 3] = xxh64_intdigest(version + fields)

    def check(self, kind: str, sizes: tuple[int, int, int, int]) -> None:
        """Raises :class:`WrongMemory` if the memory is not of this kind and these sizes."""
        if (self.kind, self.sizes) != (kind, sizes):
            raise WrongMemory(
                f"the memory is {self.kind!r} of sizes {self.sizes}, not {kind!r} of {sizes}"
            )


def commit(memory: memoryview) -> None:
    """Makes a header valid, and with it all that was written before."""
    memory.cast("Q")[0] = MAGIC


def withdraw(memory: memoryview) -> None:
    """Makes a header invalid: from here on ``read_header`` raises :class:`NeverCreated`."""
    memory.cast("Q")[0] = 0


def read_header(memory: memoryview) -> MemoryHeader:
    """Returns the header of a memory.

    Raises :class:`NeverCreated`, :class:`OtherVersion` or :class:`JournalDamaged`, and
    :class:`WrongMemory` if the memory is too small for a header.
    """
    if memory.nbytes < HEADER_BYTES:
        raise WrongMemory(f"a memory of {memory.nbytes} bytes has no header")
    words = memory.cast("Q")
    if words[0] != MAGIC:
        raise NeverCreated("the memory has no committed header")
    if words[1] != FORMAT_VERSION:
        raise OtherVersion(
            f"the memory has format {words[1]}, and this program writes {FORMAT_VERSION}"
        )
    if words[_SUM_AT >> 3] != xxh64_intdigest(memory[8:_SUM_AT]):
        raise JournalDamaged("the memory's header is damaged")
    kind, identity, *sizes = _FIELDS.unpack(memory[_FIELDS_AT:_SUM_AT])
    first, second, third, fourth = sizes
    return MemoryHeader(kind.rstrip(b"\0").decode(), identity, (first, second, third, fourth))


def format_digest(layout: struct.Struct) -> int:
    """Returns a number of a layout's format, by which another layout of its size is refused."""
    return xxh64_intdigest(layout.format.encode())
