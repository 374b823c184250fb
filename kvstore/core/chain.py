"""What a node knows of its pages for tier 3: their digests, and which of them are there."""

from typing import NamedTuple

from kvstore.core.values.page_hash import DIGEST_BYTES


class Chain(NamedTuple):
    """The digests of a node's first pages, one after the other, and how many pages are kept.

    The first ``kept`` pages, which all have their digests here, are known to be in tier 3.
    That is forgotten once ``losses`` is not what the namespace counts any more.
    """

    digests: bytes
    kept: int
    losses: int

    @property
    def pages(self) -> int:
        """How many pages have their digests here."""
        return len(self.digests) // DIGEST_BYTES

    def digest(self, pages: int) -> bytes:
        """Return the digest of the last of the first ``pages`` pages."""
        return self.digests[(pages - 1) * DIGEST_BYTES : pages * DIGEST_BYTES]

    def cut(self, keep: int) -> "Chain | None":
        """Return what is known of the first ``keep`` pages."""
        if not keep:
            return None
        return Chain(self.digests[: keep * DIGEST_BYTES], min(self.kept, keep), self.losses)

    def divide(self, pages: int) -> "tuple[Chain | None, Chain | None]":
        """Return what is known of the first ``pages`` pages, and of those after them."""
        rest = self.digests[pages * DIGEST_BYTES :]
        lower = Chain(rest, max(self.kept - pages, 0), self.losses) if rest else None
        return self.cut(pages), lower


def joined(upper: Chain | None, pages: int, lower: Chain | None) -> Chain | None:
    """Return what is known of ``pages`` pages and of those after them, ``upper`` and ``lower``.

    Where ``lower`` is something ``upper`` has the digests of all its pages.
    """
    if upper is None or lower is None:
        return upper
    goes_on = upper.kept == pages and upper.losses == lower.losses
    kept = upper.kept + lower.kept if goes_on else upper.kept
    return Chain(upper.digests + lower.digests, kept, upper.losses)
