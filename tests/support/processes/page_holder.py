"""What a worker of the multi-process tests holds, step by step, under names of the test's."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from multiprocessing.synchronize import Barrier
from typing import NamedTuple

from kvstore_client import Acquired, Client, Namespace, PageRef, Reservation
from pages.stamped_pages import LAYOUT, Stamp, WrongPage, page_count, stamps_of, write_page

LIMIT = 60.0


@dataclass
class Held:
    """What a worker holds of one sequence, and what it saw and wrote there."""

    tokens: list[int]
    acquired: Acquired
    seen: list[Stamp]
    own: list[Stamp] = field(default_factory=list)

    @property
    def own_places(self) -> list[PageRef]:
        """The slots to write."""
        return self.acquired.reservation.pages if self.acquired.reservation else []


class Raced(NamedTuple):
    """What came of racing for one sequence.

    ``path`` is where the index has its pages by this worker's answers,
    ``published[k]`` whether page k is this worker's, ``own`` its slots.
    """

    path: list[PageRef]
    published: list[bool]
    own: list[PageRef]


class PageHolder:
    """Matches and reservations of one worker, each under a key.

    ``told`` says whether a command that goes on is to end.
    """

    def __init__(
        self,
        client: Client,
        namespace: Namespace,
        *,
        told: Callable[[], bool],
        barrier: Barrier | None = None,
    ) -> None:
        self._namespace = namespace
        self._told = told
        self._barrier = barrier
        self._name = client.config.display_name
        self._numbers = count(1)
        self._held: dict[str, Held] = {}
        self._granted: set[PageRef] = set()

    def match(self, key: str, tokens: list[int]) -> int:
        """Match, keep the match, and return how many tokens it has."""
        return self._keep(key, tokens, Acquired(self._namespace.match(tokens)))

    def acquire(self, key: str, tokens: list[int]) -> int:
        """Match, reserve the rest, keep both, and return how many tokens are matched."""
        total = page_count(tokens)
        return self._keep(key, tokens, self._namespace.acquire(tokens, total_page_count=total))

    def fill(self, key: str) -> list[PageRef]:
        """Writes the reserved pages, and returns them."""
        held = self._held[key]
        held.own = self._write(held.tokens, held.acquired.reservation)
        return held.own_places

    def insert(self, key: str, first: int, end: int) -> tuple[list[PageRef], int]:
        """Inserts the sequence's pages from ``first`` to before ``end``, as the store answers."""
        held = self._held[key]
        start, stop = first * LAYOUT.page_tokens, end * LAYOUT.page_tokens
        assert held.acquired.reservation is not None
        return held.acquired.reservation.insert(
            held.tokens[start:stop], position=start, base=held.acquired.match
        )

    def check(self, key: str) -> list[Stamp]:
        """Return the writes of the matched pages; raises WrongPage, also for pages that changed."""
        held = self._held[key]
        stamps = stamps_of(self._namespace, held.tokens, held.acquired.match.pages)
        if stamps != held.seen:
            raise WrongPage(f"published pages changed from {held.seen} to {stamps}")
        return stamps

    def watch(self, key: str) -> int:
        """Checks the matched pages until told to end; returns how often."""
        assert self._held[key].seen
        looks = 0
        while looks == 0 or not self._told():
            self.check(key)
            looks += 1
        return looks

    def own_pages_are_untouched(self, key: str) -> bool:
        """Returns whether all reserved slots still hold what this worker wrote there."""
        held = self._held[key]
        first = held.acquired.match.page_count
        return stamps_of(self._namespace, held.tokens, held.own_places, first=first) == held.own

    def overwrite_duplicates(self, key: str, path: list[PageRef]) -> None:
        """Writes those of the reserved slots that are not in ``path`` once more."""
        held = self._held[key]
        for page in set(held.own_places) - set(path):
            write_page(self._namespace.page(page), held.tokens, 0, self._stamp())

    def matched_pages(self, key: str) -> list[PageRef]:
        """Returns where the matched pages are."""
        return self._held[key].acquired.match.pages

    def release(self, key: str) -> None:
        """Gives back what is held."""
        self._held.pop(key).acquired.release()

    def race(self, key: str, tokens: list[int], *, abreast: bool) -> Raced:
        """Starts with all others and insert page by page; keeps what is held.

        ``abreast``: nobody inserts before all have matched and written.
        """
        self._meet()
        self.acquire(key, tokens)
        self.fill(key)
        if abreast:
            self._meet()
        match = self._held[key].acquired.match
        path, published = list(match.pages), [False] * match.page_count
        for page in range(match.page_count, page_count(tokens)):
            pages, own = self.insert(key, page, page + 1)
            path += pages
            published.append(bool(own))
        return Raced(path, published, self._held[key].own_places)

    def granted(self) -> set[PageRef]:
        """Returns all slots that this worker was ever given to write."""
        return self._granted

    def _keep(self, key: str, tokens: list[int], acquired: Acquired) -> int:
        assert key not in self._held
        assert acquired.failure is None, acquired.failure
        assert acquired.match.token_count < len(tokens)
        seen = stamps_of(self._namespace, tokens, acquired.match.pages)
        self._held[key] = Held(tokens, acquired, seen)
        return acquired.match.token_count

    def _write(self, tokens: list[int], reservation: Reservation | None) -> list[Stamp]:
        """Writes all pages of a reservation; returns the writes."""
        if reservation is None:
            return []
        self._granted.update(reservation.pages)
        stamps = [self._stamp() for _ in reservation.pages]
        for number, page, stamp in self._numbered(reservation, stamps):
            write_page(self._namespace.page(page), tokens, number, stamp)
        return stamps

    def _numbered(
        self, reservation: Reservation, stamps: list[Stamp]
    ) -> Iterator[tuple[int, PageRef, Stamp]]:
        return zip(count(reservation.start_page), reservation.pages, stamps, strict=False)

    def _stamp(self) -> Stamp:
        return Stamp(self._name, next(self._numbers))

    def _meet(self) -> None:
        assert self._barrier is not None
        self._barrier.wait(LIMIT)
