"""HiCache's hashes as paths of the store."""

from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore_sglang.hicache.hash_path import WORDS, HashPath


def keys(count: int) -> list[str]:
    """Returns the hashes of that many pages."""
    return [sha256(bytes([number])).hexdigest() for number in range(count)]


@given(before=st.integers(0, 6), count=st.integers(0, 6), matched=st.integers(0, 20))
def test_found_pages_are_those_after_the_prefix(before: int, count: int, matched: int) -> None:
    """A match counts from the beginning, and what HiCache asks for begins after the prefix."""
    every = keys(before + count)
    path = HashPath.of(every[before:], every[:before])
    there = every[:matched]
    assert path.found(len(there)) == len([each for each in every[before:] if each in there])
    assert (path.before, path.count, path.total) == (before, count, before + count)


def test_a_query_asks_for_every_page() -> None:
    """A match leaves out a token, so a query has one more than the tokens of its pages."""
    path = HashPath.of(keys(2), None)
    assert len(path.query) == 4 * (2 * WORDS + 1)
    assert path.query.startswith(path.tokens_between(0, 2))
    assert path.tokens_between(1, 2) == bytes.fromhex(keys(2)[1])


@pytest.mark.parametrize("key", ["", "ab", "x" * 64, f"{keys(1)[0]}.swa"])
def test_another_key_is_refused(key: str) -> None:
    """A name that is no SHA-256 raises."""
    with pytest.raises(ValueError, match=r"no SHA-256|non-hexadecimal"):
        HashPath.of([key], [])
