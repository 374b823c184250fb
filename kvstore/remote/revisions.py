"""Revisions of a namespace's shards: how hosts that share an engine forget.

A flat store cannot delete all pages behind a removed one, and other hosts go on writing. So each
shard has a revision, which is a part of its pages' names and keys. A removal writes a later one.
From then on no host finds the pages of the earlier one, and the engine expires them.

The revision is a control value in the engine: a counter, random bytes and a keyed digest. The
digest stops whoever has no secret from inventing a revision. It cannot stop an administrator
from restoring an old one: hosts compare the counter with the highest that they have seen.
"""

import hmac
import os
import struct
from typing import Final, NamedTuple

from kvstore.remote.names import checked_secret, keyed_digest

_LABEL: Final = b"kvs-r-revision-1"
_RANDOM_BYTES: Final = 8
_DIGEST_BYTES: Final = 16
_PLAIN: Final = struct.Struct(f">Q{_RANDOM_BYTES}s")
CONTROL_BYTES: Final = _PLAIN.size + _DIGEST_BYTES


class ForgedRevision(ValueError):
    """A control value was not made under this secret for this shard."""


class Revision(NamedTuple):
    """A state of a shard. One with a higher counter is later.

    Two hosts that remove at a time make revisions with one counter, which differ in ``random``.
    Pages of earlier ones are unreachable by either.
    """

    counter: int
    random: bytes

    @property
    def identity(self) -> bytes:
        """The bytes that names and keys of pages contain."""
        return _PLAIN.pack(self.counter, self.random)


class RevisionCodec:
    """Makes and reads control values under one secret. Thread-safe."""

    def __init__(self, secret: bytes) -> None:
        self._secret = checked_secret(secret)

    def renewed(self, earlier: Revision | None) -> Revision:
        """Returns a revision later than another one, or a first one, which nobody can guess."""
        return Revision(earlier.counter + 1 if earlier else 1, os.urandom(_RANDOM_BYTES))

    def encoded(self, namespace_digest: bytes, shard: int, revision: Revision) -> bytes:
        """Returns a revision's control value: ``CONTROL_BYTES`` bytes."""
        identity = revision.identity
        return identity + self._digest(namespace_digest, shard, identity)

    def decoded(self, namespace_digest: bytes, shard: int, value: bytes) -> Revision:
        """Returns the revision of a control value; raises :class:`ForgedRevision`."""
        identity, digest = value[: _PLAIN.size], value[_PLAIN.size :]
        if not hmac.compare_digest(digest, self._digest(namespace_digest, shard, identity)):
            raise ForgedRevision(f"a control value of {len(value)} bytes has a wrong digest")
        return Revision(*_PLAIN.unpack(identity))

    def _digest(self, namespace_digest: bytes, shard: int, identity: bytes) -> bytes:
        place = shard.to_bytes(2, "little")
        return keyed_digest(self._secret, _LABEL, _DIGEST_BYTES, namespace_digest, place, identity)
