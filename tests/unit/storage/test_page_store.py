"""Values of page stores: pages in pieces, answers, and presence."""

from xxhash import xxh3_64_intdigest

from kvstore.storage.page_store import PageKey, Presence, ReadAnswer, checksum_of, size_of


def test_a_page_in_pieces_has_the_checksum_of_the_whole() -> None:
    """The checksum does not depend on the cuts of a page."""
    pieces = [memoryview(b"abc"), memoryview(b""), memoryview(b"defg")]
    assert size_of(pieces) == 7
    assert checksum_of(pieces) == xxh3_64_intdigest(b"abcdefg")


def test_an_answer_counts_the_pages_before_its_first_miss() -> None:
    """A checksum of zero is one."""
    answer = ReadAnswer((5, 0, None, 7), 3, 0.1)
    assert answer.found == (True, True, False, True)
    assert answer.leading == 2
    assert ReadAnswer((5, 7), 2, 0.1).leading == 2


def test_only_an_absent_page_is_false() -> None:
    """A page that is stored, or on its way, is there."""
    assert [each for each in Presence if not each] == [Presence.ABSENT]


def test_a_key_is_the_same_whatever_segment_it_lies_in() -> None:
    """Only the place of a page follows from its segment."""
    key = PageKey(b"n", b"d", b"s")
    assert key == PageKey(b"n", b"d")
    assert (key != PageKey(b"n", b"d", b"other")) is False
    assert key != PageKey(b"n", b"x", b"s")
    assert key != (b"n", b"d", b"s")
    assert {key: 1}[PageKey(b"n", b"d")] == 1
