"""The names of blocks in events: 64 bits that tell nothing of a page's id.

Ids count all pages of a store, so they would show a tenant how many pages others insert. No two
pages of a store have one id. Two of a million blocks share a name with a chance of 3e-8, and
nobody without the key can look for two that do.
"""

from functools import lru_cache
from hashlib import blake2b
from struct import Struct

# A digest of BLAKE2b (RFC 7693) names eight consecutive ids, which saves most of the time.
IDS_IN_A_DIGEST = 8
KEY_BYTES = 32
_names = Struct(f"<{IDS_IN_A_DIGEST}Q")
_PERSON = b"kvs-block-name-1"
# Digests that are kept for blocks that come and go one by one.
KEPT_DIGESTS = 4_096


class BlockNames:
    """Names blocks by their ids. The same key and epoch give the same names."""

    def __init__(self, secret: bytes, epoch: int) -> None:
        """``secret`` is known to the store alone, and kept as long as the pages of ``epoch``."""
        key = blake2b(str(epoch).encode(), key=secret[:64], digest_size=KEY_BYTES).digest()
        self._keyed = blake2b(key=key, person=_PERSON)
        self._group = lru_cache(KEPT_DIGESTS)(self._digest)

    def of(self, ids: tuple[range, ...]) -> list[int]:
        """Returns the names of blocks, in order."""
        names: list[int] = []
        for each in ids:
            first = each.start // IDS_IN_A_DIGEST
            groups = range(first, (each.stop - 1) // IDS_IN_A_DIGEST + 1)
            start = each.start - first * IDS_IN_A_DIGEST
            whole = [name for group in groups for name in self._group(group)]
            names += whole[start : start + len(each)]
        return names

    def one(self, block_id: int) -> int:
        """Returns the name of one block."""
        return self._group(block_id // IDS_IN_A_DIGEST)[block_id % IDS_IN_A_DIGEST]

    def _digest(self, group: int) -> tuple[int, ...]:
        digest = self._keyed.copy()
        digest.update(group.to_bytes(8, "little"))
        return _names.unpack(digest.digest())
