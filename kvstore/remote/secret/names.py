"""Names of pages and of control values in a remote engine, which tell their readers nothing.

A reader of all names must not be able to test a guess of a prompt, and two clusters with equal
tenants must not meet. So each part of a name is a keyed BLAKE2b (RFC 7693) under the cluster's
secret, with a label of its own for each use.

A page is ``kv1/{TAG}/PAGE`` and a control value ``kvr/{TAG}``, each part in hexadecimal digits.
The tag is that of a shard of the namespace. A cluster of Valkey places by the part in braces, so
one node has a shard's control value and all its pages, and answers about them in order.

A cluster's nodes have ranges of its slots. Each shard's slot lies in the shard's own part of
them, so every node gets as many shards of a namespace as its range has parts.
"""

from binascii import crc_hqx
from functools import lru_cache
from hashlib import blake2b
from typing import Final, NamedTuple

SECRET_BYTES: Final = 32
SHARD_COUNT: Final = 64
SLOT_COUNT: Final = 16_384
# Labels: BLAKE2b's personalisation, one for each use of the secret.
_TAG: Final = b"kvs-r-tag-1"
_PAGE: Final = b"kvs-r-page-1"
_SHARD: Final = b"kvs-r-shard-1"
_TAG_BYTES: Final = 8
_PAGE_BYTES: Final = 20
_PREFIX_TAGS: Final = 4096
_SHARD_BYTES: Final = 8
_SEGMENTS: Final = 4096


class UnusableSecret(ValueError):
    """The secret does not have ``SECRET_BYTES`` bytes."""


class RemotePage(NamedTuple):
    """A page as a reader asks for it: everything that decides which bytes it has.

    ``namespace_digest`` and ``page_digest`` are those of the core, ``revision`` the bytes of the
    shard's revision. ``valid_tokens`` is below the page size for a partial page.
    """

    namespace_digest: bytes
    shard: int
    revision: bytes
    page_digest: bytes
    valid_tokens: int
    page_bytes: int


def keyed_digest(secret: bytes, label: bytes, size: int, *parts: bytes) -> bytes:
    """Returns the keyed BLAKE2b of some parts, each with its length before it, under a label."""
    digest = blake2b(digest_size=size, key=secret, person=label)
    for part in parts:
        digest.update(len(part).to_bytes(4, "little") + part)
    return digest.digest()


def checked_secret(secret: bytes) -> bytes:
    """Returns the secret; raises :class:`UnusableSecret` if it has another length."""
    if len(secret) != SECRET_BYTES:
        raise UnusableSecret(f"the secret has {len(secret)} bytes: give {SECRET_BYTES} random ones")
    return secret


def slot_of(tag: bytes) -> int:
    """Returns the slot of a cluster of Valkey that has the names with a tag in braces.

    Source: CRC16 of the XMODEM kind, https://valkey.io/topics/cluster-spec/.
    """
    return crc_hqx(tag, 0) % SLOT_COUNT


class RemoteNames:
    """The names under one secret. Thread-safe. A page's name costs about two microseconds."""

    def __init__(self, secret: bytes) -> None:
        self._secret = checked_secret(secret)
        self._tag = lru_cache(_PREFIX_TAGS)(self._make_tag)
        self.shard = lru_cache(_SEGMENTS)(self._make_shard)

    def canary(self, mark: bytes) -> bytes:
        """Returns the name of a value that a host writes to see whether the engine works."""
        return b"kv1/{%b}/canary" % mark.hex().encode()

    def control(self, namespace_digest: bytes, shard: int) -> bytes:
        """Returns the name of a shard's control value, which is the same in every revision."""
        return b"kvr/{%b}" % self._tag(namespace_digest, shard)

    def page(self, page: RemotePage) -> bytes:
        """Returns the name of a page, which differs in every revision."""
        hidden = keyed_digest(
            self._secret,
            _PAGE,
            _PAGE_BYTES,
            page.namespace_digest,
            page.revision,
            page.page_digest,
        )
        return b"kv1/{%b}/%b" % (
            self._tag(page.namespace_digest, page.shard),
            hidden.hex().encode(),
        )

    def _make_shard(self, namespace_digest: bytes, segment: bytes) -> int:
        """Returns the shard of a segment, by the digest of its first page."""
        drawn = keyed_digest(self._secret, _SHARD, _SHARD_BYTES, namespace_digest, segment)
        return int.from_bytes(drawn) % SHARD_COUNT

    def _make_tag(self, namespace_digest: bytes, shard: int) -> bytes:
        if not 0 <= shard < SHARD_COUNT:
            raise ValueError(f"shard {shard} is not below {SHARD_COUNT}")
        parts = namespace_digest, shard.to_bytes(2, "little")
        drawn = int.from_bytes(keyed_digest(self._secret, _TAG, _TAG_BYTES, *parts))
        # The first number from the drawn one on whose slot is in the shard's part.
        while True:
            tag = b"%016x" % drawn
            if slot_of(tag) * SHARD_COUNT // SLOT_COUNT == shard:
                return tag
            drawn = (drawn + 1) % (1 << 8 * _TAG_BYTES)
