"""Placeholders in a prompt, and the words that replace them in a key."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Final, Self

from kvstore_client.engines.canonical import framed, text_bytes
from kvstore_vllm.engine.vllm_types import FeatureLike

MARK: Final = b"kvstore_vllm placeholders 1"
# Words of a 256-bit digest. A run with fewer tokens holds only a part of its content's digest.
DIGEST_WORDS: Final = 8


@dataclass(frozen=True)
class PlaceholderRun:
    """The tokens from ``start`` until ``end``, for one input or for several that overlap."""

    start: int
    end: int
    words: "array[int]"
    """The digest of the inputs, as eight uint32, little-endian."""

    @classmethod
    def over(cls, features: Sequence[FeatureLike], tokens: Sequence[int]) -> Self:
        """Returns the common run of overlapping features in ``tokens``.

        Their placeholders' own ids are in the digest: some models mark rows with them.
        """
        start = min(each.mm_position.offset for each in features)
        end = max(each.mm_position.offset + each.mm_position.length for each in features)
        parts = [MARK, array("q", tokens[start:end]).tobytes()]
        for each in features:
            place = each.mm_position
            parts += [
                text_bytes(each.modality),
                text_bytes(each.identifier),
                f"{place.offset - start} {place.length}".encode(),
                b"" if place.is_embed is None else bytes(map(bool, place.is_embed.tolist())),
            ]
        words = array("I", sha256(framed(*parts)).digest())
        return cls(start, end, words)

    @property
    def is_covered(self) -> bool:
        """Says whether the whole digest fits into the run."""
        return self.end - self.start >= DIGEST_WORDS

    def write_into(self, ids: "array[int]") -> None:
        """Replaces the run's ids by the digest's words, as far as ``ids`` reach."""
        end = min(self.end, len(ids))
        length = end - self.start
        if length > 0:
            repeats = -(-length // DIGEST_WORDS)
            ids[self.start : end] = (self.words * repeats)[:length]

    def cuts(self, count: int) -> bool:
        """Returns whether ``count`` tokens end inside the digest's words."""
        return self.start < count < min(self.start + DIGEST_WORDS, self.end)


def runs_of(features: Sequence[FeatureLike], tokens: Sequence[int]) -> list[PlaceholderRun]:
    """Returns the runs of a prompt's features in order; those that overlap share one."""
    ordered = sorted(features, key=lambda each: each.mm_position.offset)
    groups: list[list[FeatureLike]] = []
    end = 0
    for each in ordered:
        place = each.mm_position
        if not groups or place.offset >= end:
            groups.append([])
        groups[-1].append(each)
        end = max(end, place.offset + place.length)
    return [PlaceholderRun.over(group, tokens) for group in groups]
