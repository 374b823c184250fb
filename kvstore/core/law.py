"""What a law is, and what is raised where one does not hold."""


class LawBroken(AssertionError):
    """A law of the cache does not hold."""


def law(holds: bool, sentence: str, *details: object) -> None:  # noqa: FBT001 - reads as a law
    """Raise :class:`LawBroken`, saying the law, unless it holds."""
    if not holds:
        raise LawBroken(f"{sentence}: {details}" if details else sentence)
