"""Pins between the question which pages exist, and the read of them."""

from kvstore_client import Match
from kvstore_sglang.hicache.page_pins import PagePins


class CountedMatch(Match):
    """A match that counts its releases, and whose store may be gone."""

    def __init__(self) -> None:
        super().__init__()
        self.released = 0
        self.is_over = False

    @property
    def session_ended(self) -> bool:
        """True if the test says so."""
        return self.is_over

    def release(self) -> None:
        """Counts."""
        self.released += 1


def held(pins: PagePins, *keys: str, now: float = 0.0) -> list[CountedMatch]:
    """Pins a match under each key."""
    found = [CountedMatch() for _ in keys]
    for key, match in zip(keys, found, strict=True):
        pins.hold(key, match, now)
    return found


def test_a_pin_ends_as_its_page_is_read() -> None:
    """Only that one is released, once; an unknown key ends nothing."""
    pins = PagePins(10.0)
    first, second = held(pins, "a", "b")
    for key in ("a", "a", "c"):
        pins.end(key)
    assert (first.released, second.released, len(pins)) == (1, 0, 1)


def test_a_pin_ends_after_its_time() -> None:
    """A prefetch that was given up holds pages no longer than that."""
    pins = PagePins(10.0)
    [early] = held(pins, "a", now=0.0)
    [late] = held(pins, "b", now=9.0)
    pins.expire(9.9)
    assert (early.released, late.released) == (0, 0)
    pins.expire(10.0)
    assert (early.released, late.released, len(pins)) == (1, 0, 1)


def test_a_later_pin_of_a_page_replaces_the_earlier() -> None:
    """The earlier one is released, and the time begins anew."""
    pins = PagePins(10.0)
    [first] = held(pins, "a", now=0.0)
    [second] = held(pins, "a", now=5.0)
    pins.expire(14.0)
    assert (first.released, second.released) == (1, 0)


def test_pins_of_a_store_that_is_gone_end() -> None:
    """A client attaches anew only once nothing of the old session is held."""
    pins = PagePins(10.0)
    gone, kept = held(pins, "a", "b")
    gone.is_over = True
    pins.expire(0.0)
    assert (gone.released, kept.released) == (1, 0)


def test_all_pins_end_at_the_end() -> None:
    """Clearing releases each once."""
    pins = PagePins(10.0)
    found = held(pins, "a", "b")
    pins.clear()
    pins.clear()
    assert [each.released for each in found] == [1, 1]
    assert len(pins) == 0
