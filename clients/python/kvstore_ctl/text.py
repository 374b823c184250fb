"""How many there are of something, as people say it."""


def printable(text: str) -> str:
    r"""Returns ``text`` on one line, with an escape for each character that is not printed.

    Such as ``\n`` and ``\x1b``, and what turns the direction of writing: names and tokens
    come from other programs, and a terminal obeys some characters.
    """
    return "".join(each if each.isprintable() else _escaped(each) for each in text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def counted(count: int, one: str, many: str = "") -> str:
    """Returns a count and its noun: 1 page, 2 pages; ``many`` where it is not ``one`` and an s."""
    return f"{count} {one if count == 1 else many or f'{one}s'}"


def gone(evicted: int, detached: int) -> str:
    """Returns what became of pages that were removed, those in use among them."""
    return (
        f"{counted(evicted, 'page is', 'pages are')} gone, "
        f"{counted(detached, 'goes at its', 'go at their')} last release"
    )
