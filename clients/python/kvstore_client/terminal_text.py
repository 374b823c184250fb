"""Text from elsewhere as a terminal may have it."""


def printable(text: str) -> str:
    r"""Return ``text`` on one line, with an escape for each character that is not printed.

    Such as ``\n`` and ``\x1b``, and what turns the direction of writing: names and tokens
    come from other programs, and a terminal obeys some characters.
    """
    return "".join(each if each.isprintable() else _escaped(each) for each in text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
