"""How many there are of something, as people say it."""


def counted(count: int, one: str, many: str = "") -> str:
    """Return a count and its noun: 1 page, 2 pages; ``many`` where it is not ``one`` and an s."""
    return f"{count} {one if count == 1 else many or f'{one}s'}"


def gone(evicted: int, detached: int) -> str:
    """Return what became of pages that were removed, those in use among them."""
    return (
        f"{counted(evicted, 'page is', 'pages are')} gone, "
        f"{counted(detached, 'goes at its', 'go at their')} last release"
    )
