"""Seals pages for an engine that others can read and write.

A sealed value is a header, then AES-256-GCM (NIST SP 800-38D) over the page::

    magic and version 4 | key id 4 | nonce 12 | masked checksum 8 | ciphertext of the page | tag 16

Nothing else is in clear. The associated data is everything that the reader asked for, and the
header's checksum. The reader makes it anew, so a value of another page, revision or size fails its
tag, and no comparison can be forgotten. A page's name depends on nothing else.

Each page and revision has a key of its own, so a nonce can repeat only among rewrites of one page.
The mask of the writer's checksum is a keyed BLAKE2b (RFC 7693) of the nonce under that key. A seal
proves that a host of the cluster wrote the value, and the checksum that its memory was whole then.

The checksum lies before the page, so that the cipher can work on the page's own memory.
Decision 56 has the reasons, and the attacks that they were compared with.
"""

import os
import struct
from collections.abc import Iterator, Sequence
from threading import local
from typing import ClassVar, Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from xxhash import xxh3_64_intdigest

from kvstore.remote.buffers import clear_bytes, copy_bytes
from kvstore.remote.secret.names import RemotePage, checked_secret, keyed_digest

# The last byte is the version.
MAGIC: Final = b"KVR\x02"
KEY_ID_BYTES: Final = 4
NONCE_BYTES: Final = 12
CHECKSUM_BYTES: Final = 8
TAG_BYTES: Final = 16
_HEADER: Final = struct.Struct(f"<{len(MAGIC)}s{KEY_ID_BYTES}s{NONCE_BYTES}s{CHECKSUM_BYTES}s")
SEAL_BYTES: Final = _HEADER.size + TAG_BYTES
# Labels: BLAKE2b's personalisation, one for each use of the secret.
_KEY: Final = b"kvs-r-seal-1"
_KEY_ID: Final = b"kvs-r-keyid-1"
_MASK: Final = b"kvs-r-mask-1"
_KEY_BYTES: Final = 32


class PageRejected(Exception):
    """A value is not the page that was asked for. The destination has none of its bytes.

    ``is_spoiled`` says that no reader with this secret can use the value, so it may be deleted.
    Values of other versions and secrets may be good for others.
    """

    is_spoiled: ClassVar[bool] = False


class UnknownFormat(PageRejected):
    """The value has another length, magic or version."""


class ForeignSecret(PageRejected):
    """The value was sealed under another secret."""


class SealBroken(PageRejected):
    """The value is that of another page, or its bytes changed."""

    is_spoiled = True


class ChecksumWrong(PageRejected):
    """The page's bytes are not those that its writer gave the checksum for."""

    is_spoiled = True


class PageSealer:
    """Seals and opens pages under one secret. Any thread may use it.

    A page in one piece is sealed out of its own memory and opened into it. Each thread has private
    memory for pages in several pieces. Ciphers and checksums release the interpreter's lock.
    """

    def __init__(self, secret: bytes) -> None:
        self._secret = checked_secret(secret)
        self._private = local()
        self.key_id = keyed_digest(secret, _KEY_ID, KEY_ID_BYTES)

    def seal(
        self,
        page: RemotePage,
        pieces: Sequence[memoryview],
        checksum: int | None,
        value: memoryview,
    ) -> None:
        """Writes the sealed page to ``value``, which has ``SEAL_BYTES`` more than the page.

        Raises :class:`ChecksumWrong` if the page differs from ``checksum``. Without a checksum, the
        page's own goes into the seal. Workers can write to the page meanwhile. Readers then find
        that the page is not that of the checksum.
        """
        plain = self._joined(page, pieces)
        found = xxh3_64_intdigest(plain)
        if checksum is not None and found != checksum:
            raise ChecksumWrong("the page changed since its writer gave the checksum")
        nonce, key = os.urandom(NONCE_BYTES), self._key(page)
        masked = _masked(found.to_bytes(CHECKSUM_BYTES, "little"), key, nonce)
        _HEADER.pack_into(value, 0, MAGIC, self.key_id, nonce, masked)
        AESGCM(key).encrypt_into(
            nonce, plain, self._associated(page, masked), value[_HEADER.size :]
        )

    def open(self, page: RemotePage, value: memoryview, pieces: Sequence[memoryview]) -> int:
        """Writes the page of a sealed value to ``pieces``; returns its writer's checksum.

        The caller alone may read the pieces until it returns. Raises :class:`PageRejected` for
        every value but one that was sealed under this secret for exactly this page. The pieces
        are then as they were, or zero if the value had to be deciphered for that.
        """
        if value.nbytes != page.page_bytes + SEAL_BYTES:
            raise UnknownFormat(f"the value has {value.nbytes} bytes")
        _require_size(page, pieces)
        magic, key_id, nonce, masked = _HEADER.unpack_from(value)
        if magic != MAGIC:
            raise UnknownFormat(f"the value begins with {magic.hex()}")
        if key_id != self.key_id:
            raise ForeignSecret(f"the value has key id {key_id.hex()}, not {self.key_id.hex()}")
        key = self._key(page)
        plain = pieces[0] if len(pieces) == 1 else self._plain(page)
        checksum = int.from_bytes(_masked(masked, key, nonce), "little")
        is_whole = False
        try:
            AESGCM(key).decrypt_into(
                nonce, value[_HEADER.size :], self._associated(page, masked), plain
            )
            if xxh3_64_intdigest(plain) != checksum:
                raise ChecksumWrong("the page was already another when it was sealed")
            is_whole = True
        except InvalidTag:
            raise SealBroken("the value is not the page that its name says") from None
        finally:
            if not is_whole:
                # The cipher writes before it has compared the tag.
                clear_bytes(plain)
        if len(pieces) > 1:
            for piece, part in zip(pieces, _cut(plain, pieces), strict=True):
                copy_bytes(piece, part)
        return checksum

    def _joined(self, page: RemotePage, pieces: Sequence[memoryview]) -> memoryview:
        """Returns a page in one piece: its own memory, or a copy in this thread's memory."""
        _require_size(page, pieces)
        if len(pieces) == 1:
            return pieces[0]
        plain = self._plain(page)
        for piece, part in zip(pieces, _cut(plain, pieces), strict=True):
            copy_bytes(part, piece)
        return plain

    def _plain(self, page: RemotePage) -> memoryview:
        """Returns this thread's memory for a page."""
        plain: memoryview | None = getattr(self._private, "plain", None)
        if plain is None or plain.nbytes < page.page_bytes:
            plain = self._private.plain = memoryview(bytearray(page.page_bytes))
        return plain[: page.page_bytes]

    def _key(self, page: RemotePage) -> bytes:
        parts = page.namespace_digest, page.revision, page.page_digest
        return keyed_digest(self._secret, _KEY, _KEY_BYTES, *parts)

    def _associated(self, page: RemotePage, masked: bytes) -> bytes:
        """Returns everything that was asked for, each part with its length or of a fixed one."""
        parts = (
            MAGIC,
            self.key_id,
            page.namespace_digest,
            page.revision,
            page.page_digest,
        )
        lengths = b"".join(len(part).to_bytes(4, "little") for part in parts)
        sizes = struct.pack("<HIQ", page.shard, page.valid_tokens, page.page_bytes)
        return lengths + sizes + masked + b"".join(parts)


def _masked(checksum: bytes, key: bytes, nonce: bytes) -> bytes:
    """Returns a checksum under its mask, or a masked one without it."""
    mask = keyed_digest(key, _MASK, CHECKSUM_BYTES, nonce)
    return (int.from_bytes(checksum) ^ int.from_bytes(mask)).to_bytes(CHECKSUM_BYTES)


def _cut(plain: memoryview, pieces: Sequence[memoryview]) -> Iterator[memoryview]:
    """Yields the parts of a page that belong to its pieces."""
    start = 0
    for piece in pieces:
        yield plain[start : start + piece.nbytes]
        start += piece.nbytes


def _require_size(page: RemotePage, pieces: Sequence[memoryview]) -> None:
    """Raises ValueError unless the pieces have the page's bytes."""
    if (size := sum(piece.nbytes for piece in pieces)) != page.page_bytes:
        raise ValueError(f"the pieces have {size} bytes, the page {page.page_bytes}")
