"""What a scheduler and whoever has the pages say to each other."""

from collections.abc import Hashable, Sequence
from enum import Enum
from typing import NamedTuple, Protocol


class Part(NamedTuple):
    """The next ``token_count`` tokens of a request, to be computed in this step."""

    number: int
    token_count: int


class Admitted(NamedTuple):
    """A request has pages: of its ``token_count`` tokens the first ``computed`` are in them."""

    token_count: int
    computed: int


class NotAdmitted(Enum):
    """Why a request did not come to run: no pages for its tokens just now, or it has ended."""

    NO_ROOM = 1
    ENDED = 2


class Elsewhere(NamedTuple):
    """A request holds nothing, for what it lacks is being done elsewhere.

    Requests of one ``prefix`` lack the same. It is worth another look after ``look_after``
    seconds, and waits ``at_most`` seconds from its first look on; then it does without. Where
    ``one_is_enough`` it does so for all of the prefix: the others' wait begins anew.
    """

    prefix: Hashable
    look_after: float
    at_most: float
    one_is_enough: bool = True


class Supply(Protocol):
    """Gets and gives back the pages of requests, by their numbers."""

    def peek(self, number: int) -> int:
        """Returns how many of a waiting request's tokens are cached; holds nothing."""
        ...

    def admit(self, number: int, *, may_yield: bool) -> Admitted | Elsewhere | NotAdmitted:
        """Matches a waiting request and have pages for all its tokens; else hold nothing.

        Only with ``may_yield`` may the answer be that they are computed elsewhere.
        """
        ...

    def grow(self, wanted: Sequence[tuple[int, int]]) -> bool:
        """Have pages for each ``(number, tokens)``; tells whether all have theirs.

        The store's, and private ones for those alone that have private ones already.
        """
        ...

    def grow_private(self, number: int, token_count: int) -> bool:
        """Have pages of the engine's own for what a request lacks, all or none; tells which."""
        ...

    def give_way(self, number: int) -> None:
        """Puts what is complete of a request into the store, and gives back all that it holds."""
        ...
