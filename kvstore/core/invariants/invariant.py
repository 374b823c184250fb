"""An invariant: a sentence about the cache that holds after every call."""


class InvariantBroken(AssertionError):
    """An invariant of the cache does not hold."""


def invariant(holds: bool, sentence: str, *details: object) -> None:  # noqa: FBT001 - reads as one
    """Raises :class:`InvariantBroken` with the sentence, unless it holds."""
    if not holds:
        raise InvariantBroken(f"{sentence}: {details}" if details else sentence)
