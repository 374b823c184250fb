"""Pages whose bytes identify their tokens."""

import pytest

from support.page_stamps import PageKey, Stamp, WrongPage, page_keys, stamp_of, stamped

SIZE = 256
STAMP = Stamp("writer-1", 7)


def tokens(*ids: int) -> bytes:
    """Returns packed tokens."""
    return b"".join(each.to_bytes(4, "little") for each in ids)


def keys(*ids: int) -> list[PageKey]:
    """Returns the keys of a sequence in pages of two tokens."""
    return list(page_keys(tokens(*ids), 2))


def test_a_page_is_its_own() -> None:
    """A page is recognised by its key, with its writer and its number."""
    for key in keys(1, 2, 3, 4, 5):
        assert stamp_of(stamped(key, STAMP, SIZE), key) == STAMP


def test_a_key_depends_on_all_before_it() -> None:
    """The same tokens after other tokens are another page."""
    first, second = keys(1, 2, 3, 4)[1], keys(1, 9, 3, 4)[1]
    assert first.tokens == second.tokens
    with pytest.raises(WrongPage, match="another prefix"):
        stamp_of(stamped(second, STAMP, SIZE), first)


def test_other_tokens_are_seen() -> None:
    """A page with other, more or fewer tokens at the same place is wrong."""
    key, other, partial = keys(1, 2)[0], keys(1, 9)[0], keys(1)[0]
    for there, wanted in ((other, key), (key, partial), (partial, key)):
        with pytest.raises(WrongPage, match="other tokens"):
            stamp_of(stamped(there, STAMP, SIZE), wanted)


def test_a_page_to_copy_from_has_to_begin_alike() -> None:
    """A source page is right if its valid tokens are the sequence's, whatever follows them."""
    key, other = keys(1, 2)[0], keys(1, 9)[0]
    assert stamp_of(stamped(other, STAMP, SIZE), key, token_count=1) == STAMP
    with pytest.raises(WrongPage, match="other tokens"):
        stamp_of(stamped(other, STAMP, SIZE), key, token_count=2)


@pytest.mark.parametrize("at", [0, 17, 40, SIZE // 2, SIZE - 1])
def test_every_byte_counts(at: int) -> None:
    """A page with one flipped bit is wrong."""
    [key] = keys(1, 2)
    content = bytearray(stamped(key, STAMP, SIZE))
    content[at] ^= 1
    with pytest.raises(WrongPage):
        stamp_of(bytes(content), key)


def test_torn_pages_are_seen() -> None:
    """Halves of two writes, and a half of one on a page of zeros, are wrong."""
    [key] = keys(1, 2)
    mine, theirs = stamped(key, STAMP, SIZE), stamped(key, Stamp("writer-2", 7), SIZE)
    for rest in (theirs, bytes(SIZE)):
        with pytest.raises(WrongPage, match="bytes 128 to 255"):
            stamp_of(mine[: SIZE // 2] + rest[SIZE // 2 :], key)


def test_an_empty_page_is_seen() -> None:
    """A page that was never written is wrong."""
    with pytest.raises(WrongPage):
        stamp_of(bytes(SIZE), keys(1, 2)[0])
