"""Text for terminals: escaped names, and counts with their nouns."""


def printable(text: str) -> str:
    r"""Returns ``text`` on one line, with an escape for each character that is not printable.

    Examples are ``\n``, ``\x1b`` and changes of the writing direction. Names and tokens come from
    other programs, and a terminal acts on some characters.
    """
    return "".join(each if each.isprintable() else _escaped(each) for each in text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def counted(count: int, one: str, many: str = "") -> str:
    """Returns a count and its noun: 1 page, 2 pages. ``many`` is by default ``one`` and an s."""
    return f"{count} {one if count == 1 else many or f'{one}s'}"


def removed(evicted: int, detached: int) -> str:
    """Returns in words how many pages were removed; ``detached`` ones are still held."""
    return (
        f"removed {counted(evicted, 'page')}, "
        f"and {counted(detached, 'page')} in use until the last release"
    )
