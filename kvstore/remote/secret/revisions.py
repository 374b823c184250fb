"""Revisions of a namespace's shards: how hosts that share an engine forget.

A flat store cannot delete all pages behind a removed one, and other hosts go on writing. So each
shard has a revision, which is a part of its pages' names and keys. A removal writes a later one.
From then on no host finds the pages of the earlier one, and the engine expires them.

The revision is a control value in the engine: a count of removals, the name of the last one, random
bytes and a keyed digest. The digest stops whoever has no secret from inventing a revision. It
cannot stop an administrator from restoring an old one: hosts compare the count with the highest
that they have seen.

An engine can also lose a control value. The next one has the same removal and other random bytes.
So earlier pages are unreachable, and no host takes the loss for a removal.
"""

import hmac
import os
import struct
from enum import Enum, auto
from typing import Final, NamedTuple

from kvstore.remote.secret.names import checked_secret, keyed_digest

_LABEL: Final = b"kvs-r-revision-1"
REMOVAL_BYTES: Final = 8
_RANDOM_BYTES: Final = 8
_DIGEST_BYTES: Final = 16
_PLAIN: Final = struct.Struct(f">Q{REMOVAL_BYTES}s{_RANDOM_BYTES}s")
CONTROL_BYTES: Final = _PLAIN.size + _DIGEST_BYTES
NO_REMOVAL: Final = bytes(REMOVAL_BYTES)


class ForgedRevision(ValueError):
    """A control value was not made under this secret for this shard."""


class Age(Enum):
    """The place of a revision in history, beside the one that a host knows."""

    EARLIER = auto()
    """The engine forgot a removal that the host knows of."""
    SAME = auto()
    LATER = auto()
    """Somebody removed pages, and the host has not heard of it."""
    FORKED = auto()
    """Two hosts removed pages at a time, and one does not know of the other's removal."""


class Revision(NamedTuple):
    """A state of a shard: after ``counter`` removals, the last of which has a random name.

    ``random`` distinguishes values that hosts made one after another for the same state. Pages of
    each are unreachable by the others.
    """

    counter: int
    removal: bytes
    random: bytes

    @property
    def identity(self) -> bytes:
        """The bytes that names and keys of pages contain."""
        return _PLAIN.pack(*self)

    def age(self, known: "Revision | None") -> Age:
        """Returns its place beside a known one. A host that knows none knows of no removal."""
        counter, removal = (0, NO_REMOVAL) if known is None else known[:2]
        if self.counter != counter:
            return Age.LATER if self.counter > counter else Age.EARLIER
        return Age.SAME if self.removal == removal else Age.FORKED


class RevisionCodec:
    """Makes and reads control values under one secret. Thread-safe."""

    def __init__(self, secret: bytes) -> None:
        self._secret = checked_secret(secret)

    def restored(self, lost: Revision | None) -> Revision:
        """Returns a revision for the state of a lost one, which nobody can guess."""
        counter, removal = (0, NO_REMOVAL) if lost is None else lost[:2]
        return Revision(counter, removal, os.urandom(_RANDOM_BYTES))

    def removed(self, earlier: Revision | None, removal: bytes) -> Revision:
        """Returns the revision of a removal after another revision, or after a first one."""
        counter = 1 if earlier is None else earlier.counter + 1
        return Revision(counter, removal, os.urandom(_RANDOM_BYTES))

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
