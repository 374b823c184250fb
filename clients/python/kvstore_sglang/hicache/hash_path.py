"""HiCache's page hashes as the store's tokens.

HiCache names a page by the SHA-256 of its tokens and of the hash before it. Eight words of a hash
are the eight tokens of a page, so a run of hashes is a path in the store's tree.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

# 32-bit words of a SHA-256: the tokens of a page in the store.
WORDS: Final = 8
HASH_BYTES: Final = 4 * WORDS
# A match leaves one token out, so a query has one more than the pages that it asks for.
ONE_MORE: Final = bytes(4)


@dataclass(frozen=True)
class HashPath:
    """A run of pages by their hashes: ``before`` pages of a prefix, then ``count`` that are meant.

    ``packed`` has the hashes of all of them.
    """

    packed: bytes
    before: int

    @classmethod
    def of(cls, keys: Sequence[str], prefix: Sequence[str] | None) -> "HashPath":
        """Returns the path of pages after a prefix, both in HiCache's hexadecimal digits.

        Raises ``ValueError`` for a key that is no SHA-256.
        """
        every = [*(prefix or ()), *keys]
        wrong = [each for each in every if len(each) != 2 * HASH_BYTES]
        if wrong:
            raise ValueError(f"a page's key is {wrong[0]!r}, which is no SHA-256")
        return cls(bytes.fromhex("".join(every)), len(every) - len(keys))

    @property
    def total(self) -> int:
        """The number of pages, those of the prefix included."""
        return len(self.packed) // HASH_BYTES

    @property
    def count(self) -> int:
        """The number of pages after the prefix."""
        return self.total - self.before

    @property
    def query(self) -> bytes:
        """The tokens whose longest match has at most all pages."""
        return self.packed + ONE_MORE

    def found(self, matched: int) -> int:
        """Returns how many pages after the prefix a match of so many pages has."""
        return max(0, min(matched - self.before, self.count))

    def tokens_between(self, start: int, end: int) -> bytes:
        """Returns the tokens of pages from ``start`` to before ``end``, of the whole path."""
        return self.packed[start * HASH_BYTES : end * HASH_BYTES]
