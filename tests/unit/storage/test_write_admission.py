"""Second touch: what nobody asks for again is not written."""

from hashlib import blake2b

from kvstore.storage.write_admission import FirstTouch, SecondTouch, WriteAdmission


def digest(number: int) -> bytes:
    """Returns the digest of page ``number``."""
    return blake2b(b"%d" % number, digest_size=32).digest()


def touches(admission: WriteAdmission, *numbers: int) -> list[bool]:
    """Touches pages in turn."""
    return [admission.touch(digest(number)) for number in numbers]


def test_each_page_is_worth_a_write_at_its_first_touch() -> None:
    """Without a policy everything is written."""
    assert touches(FirstTouch(), 1, 1, 2) == [True, True, True]


def test_a_page_is_worth_a_write_at_its_second_touch() -> None:
    """The first is remembered, the second admits, the third is a first one again."""
    assert touches(SecondTouch(10), 1, 2, 1, 1, 2, 1) == [False, False, True, False, True, True]


def test_what_was_touched_too_long_ago_is_forgotten() -> None:
    """No more than the capacity is remembered, the latest of it."""
    admission = SecondTouch(2)
    assert touches(admission, 1, 2, 3) == [False, False, False]
    assert len(admission) == 2
    assert touches(admission, 2, 1) == [True, False]
    assert len(admission) == 2
