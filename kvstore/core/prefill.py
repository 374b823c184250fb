"""What a reservation is about to compute."""


class Prefill:
    """An announced run of whole pages: ``tokens``, from the sequence's beginning, through ``end``.

    ``at`` is the page to be inserted next, ``advanced_at`` when the one before it was, or
    the reservation was made. ``pin_id`` is of the match that it goes on from. ``end`` and
    ``at`` count pages from the sequence's beginning.
    """

    __slots__ = ("advanced_at", "at", "end", "number", "pin_id", "tokens")

    def __init__(self, tokens: bytes, at: int, end: int, pin_id: int, now: float) -> None:
        self.tokens = tokens
        self.at = at
        self.end = end
        self.pin_id = pin_id
        self.advanced_at = now
        # Counts what a namespace's prefills announce and how they advance.
        self.number = 0
