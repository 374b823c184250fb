"""How a page is named, in processes without torch too."""

from typing import NamedTuple


class PageRef(NamedTuple):
    """One page's place: the key of its extent and its slot there."""

    extent: int
    slot: int
