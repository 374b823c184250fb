"""A cache in which a letter is a token and a page has four: what is reused within a page."""

from core.core_builders import NAMESPACE_ID, OWNER, CoreWorld, Worker, places
from kvstore.core.values.limits import Limits
from kvstore.core.values.requests import Inserted, Match, MatchOptions, Removed, Sequence

PAGE = 4


def letters(text: str) -> bytes:
    """Returns one token a letter."""
    return b"".join(ord(letter).to_bytes(4, "little") for letter in text)


class LetterWorld:
    """A :class:`CoreWorld` of pages that divide by token, and its calls in letters."""

    def __init__(
        self, *, slots: int = 16, divides_by_token: bool = True, limits: Limits | None = None
    ) -> None:
        self.core = CoreWorld(
            slots=slots, limits=limits, page_tokens=PAGE, divides_by_token=divides_by_token
        )
        self.cache = self.core.cache
        self.worker = self.core.worker

    def match(
        self,
        text: str,
        pin_id: int,
        source_pin_id: int | None = None,
        *,
        accept: bool = False,
        worker: Worker | None = None,
    ) -> Match:
        """Match ``text`` under a pin, and under one for a source page if it is wanted."""
        options = MatchOptions(pin_id, source_pin_id, accept)
        caller = (worker or self.worker).caller
        return self.cache.match(
            caller, NAMESPACE_ID, Sequence(letters(text)), options, self.core.now
        )

    def insert(
        self,
        reservation_id: int,
        text: str,
        position: int = 0,
        next_token: int | None = None,
        **base: int,
    ) -> Inserted:
        """Inserts ``text``, which stands ``position`` tokens into its sequence."""
        sequence = Sequence(letters(text), position, **base)
        return self.cache.insert(
            self.worker.caller, reservation_id, sequence, self.core.now, next_token=next_token
        )

    def write(
        self, text: str, reservation_id: int, next_token: int | None = None, *, hold: bool = False
    ) -> list[int]:
        """Reserves for all of ``text`` and insert it; returns the slots answered for its pages.

        The reservation is ended, unless it is to ``hold``.
        """
        self.worker.reserve(reservation_id, -(-len(text) // PAGE))
        inserted = self.insert(reservation_id, text, next_token=next_token)
        if not hold:
            self.worker.abort(reservation_id)
        self.check()
        return places(inserted.runs)

    def evict_prefix(self, text: str) -> Removed:
        """Removes a prefix."""
        return self.cache.evict_prefix(OWNER, NAMESPACE_ID, letters(text))

    def check(self) -> None:
        """Checks every law."""
        self.core.laws.check()
