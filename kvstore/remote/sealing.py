"""Seals pages for an engine that others can read and write.

A sealed value is a header, then AES-256-GCM (NIST SP 800-38D) over the page and its checksum::

    magic and version 4 | key id 4 | nonce 12 | ciphertext of page + checksum 8 | tag 16

Nothing else is in clear. The associated data is everything that the reader asked for, and the
reader makes it anew. So a value of another page, revision or size fails its tag, and no
comparison can be forgotten. A page's name depends on nothing else.

Each page and revision has a key of its own, so a nonce can repeat only among rewrites of one page.
The writer's checksum is inside the seal. A seal proves that a host of the cluster wrote the
value, and the checksum that its memory was whole then.
"""

import os
import struct
from collections.abc import Sequence
from threading import local
from typing import ClassVar, Final

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from xxhash import xxh3_64_intdigest

from kvstore.remote.names import RemotePage, checked_secret, keyed_digest

# The last byte is the version.
MAGIC: Final = b"KVR\x01"
KEY_ID_BYTES: Final = 4
NONCE_BYTES: Final = 12
CHECKSUM_BYTES: Final = 8
TAG_BYTES: Final = 16
_HEADER: Final = struct.Struct(f"<{len(MAGIC)}s{KEY_ID_BYTES}s{NONCE_BYTES}s")
SEAL_BYTES: Final = _HEADER.size + CHECKSUM_BYTES + TAG_BYTES
# Labels: BLAKE2b's personalisation, one for each use of the secret.
_KEY: Final = b"kvs-r-seal-1"
_KEY_ID: Final = b"kvs-r-keyid-1"
_KEY_BYTES: Final = 32


class PageRejected(Exception):
    """A value is not the page that was asked for. The destination has not changed.

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

    Each thread has private memory for one page, so no plaintext that failed its tag is ever in
    memory that other processes map. Copies and ciphers release the interpreter's lock.
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

        Copies the page first, and checks and seals the copy: workers can write to the page's
        memory at any time. Raises :class:`ChecksumWrong` if the copy differs from ``checksum``.
        Without a checksum, the copy's own goes into the seal.
        """
        plain = self._plain(page)
        start = 0
        for piece in pieces:
            _copy(plain[start : start + piece.nbytes], piece)
            start += piece.nbytes
        if start != page.page_bytes:
            raise ValueError(f"the pieces have {start} bytes, the page {page.page_bytes}")
        found = xxh3_64_intdigest(plain[: page.page_bytes])
        if checksum is not None and found != checksum:
            raise ChecksumWrong("the page changed since its writer gave the checksum")
        plain[page.page_bytes :] = found.to_bytes(CHECKSUM_BYTES, "little")
        nonce = os.urandom(NONCE_BYTES)
        _HEADER.pack_into(value, 0, MAGIC, self.key_id, nonce)
        AESGCM(self._key(page)).encrypt_into(
            nonce, plain, self._associated(page), value[_HEADER.size :]
        )

    def open(self, page: RemotePage, value: memoryview, pieces: Sequence[memoryview]) -> int:
        """Copies the page of a sealed value into ``pieces``; returns its writer's checksum.

        Raises :class:`PageRejected` before it writes to the pieces, for every value but one that
        was sealed under this secret for exactly this page.
        """
        if value.nbytes != page.page_bytes + SEAL_BYTES:
            raise UnknownFormat(f"the value has {value.nbytes} bytes")
        if sum(piece.nbytes for piece in pieces) != page.page_bytes:
            raise ValueError(f"the pieces do not have the page's {page.page_bytes} bytes")
        magic, key_id, nonce = _HEADER.unpack_from(value)
        if magic != MAGIC:
            raise UnknownFormat(f"the value begins with {magic.hex()}")
        if key_id != self.key_id:
            raise ForeignSecret(f"the value has key id {key_id.hex()}, not {self.key_id.hex()}")
        plain = self._plain(page)
        try:
            AESGCM(self._key(page)).decrypt_into(
                nonce, value[_HEADER.size :], self._associated(page), plain
            )
        except InvalidTag:
            raise SealBroken("the value is not the page that its name says") from None
        checksum = int.from_bytes(plain[page.page_bytes :], "little")
        if xxh3_64_intdigest(plain[: page.page_bytes]) != checksum:
            raise ChecksumWrong("the page was already another when it was sealed")
        start = 0
        for piece in pieces:
            _copy(piece, plain[start : start + piece.nbytes])
            start += piece.nbytes
        return checksum

    def _plain(self, page: RemotePage) -> memoryview:
        """Returns this thread's memory for a page and its checksum."""
        size = page.page_bytes + CHECKSUM_BYTES
        plain: memoryview | None = getattr(self._private, "plain", None)
        if plain is None or plain.nbytes < size:
            plain = self._private.plain = memoryview(bytearray(size))
        return plain[:size]

    def _key(self, page: RemotePage) -> bytes:
        parts = page.namespace_digest, page.revision, page.page_digest
        return keyed_digest(self._secret, _KEY, _KEY_BYTES, *parts)

    def _associated(self, page: RemotePage) -> bytes:
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
        return lengths + sizes + b"".join(parts)


def _copy(target: memoryview, source: memoryview) -> None:
    """Copies bytes as numpy does, which releases the interpreter's lock; slices hold it."""
    np.copyto(np.frombuffer(target, np.uint8), np.frombuffer(source, np.uint8))
