"""The store's pages that an engine has announced in its own KV events."""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Final, Generic, NamedTuple, TypeVar

Key = TypeVar("Key", bound=Hashable)
Place = TypeVar("Place")
Event = TypeVar("Event")

# Pages that stay announced; above this number the least recently seen paths are withdrawn. A page
# costs about 500 bytes here, and its tokens 4 bytes each.
MOST_PAGES: Final = 262_144


@dataclass(slots=True)
class _Page(Generic[Key, Place]):
    """An announced page: its parent's key, its own tokens, and where the store has it.

    ``seen`` is the number of the latest report that it is there.
    """

    parent: Key | None
    tokens: bytes
    place: Place
    seen: int
    children: set[Key] = field(default_factory=set)


class AnnouncedPath(NamedTuple, Generic[Key, Place]):
    """An announced path, from its first page to one that no announced page follows.

    ``asked`` is the number of the latest report when the path was asked for.
    """

    keys: Sequence[Key]
    tokens: bytes
    place: Place
    asked: int


class AnnouncedPages(Generic[Key, Place, Event]):
    """The pages of a store that consumers of an engine's events know about, and news for them.

    The pages of a path follow each other, and all before an announced page are announced. Each
    page is announced once and withdrawn once, with all that follow it. ``removed`` makes the event
    that withdraws pages. Any thread may use it.
    """

    def __init__(
        self, removed: Callable[[Sequence[Key]], Event], *, most_pages: int = MOST_PAGES
    ) -> None:
        self._removed = removed
        self._most_pages = most_pages
        self._mutex = Lock()
        self._pages: dict[Key, _Page[Key, Place]] = {}
        # The last pages of paths, the least recently seen ones first.
        self._ends: OrderedDict[Key, None] = OrderedDict()
        self._events: list[Event] = []
        self._reports = 0

    def __len__(self) -> int:
        """Returns the number of announced pages."""
        return len(self._pages)

    @property
    def has_events(self) -> bool:
        """True while events wait to be taken."""
        return bool(self._events)

    def take(self) -> list[Event]:
        """Returns the events since the last call, in their order."""
        with self._mutex:
            events, self._events = self._events, []
        return events

    def present(
        self,
        place: Place,
        keys: Sequence[Key],
        tokens: bytes,
        stored: Callable[[int], Event],
    ) -> None:
        """Notes that the store has the path of ``keys``, whose packed tokens are ``tokens``.

        ``stored`` makes the event that announces the pages from a number on. It is called at most
        once, if some of them are not announced; if it raises, they stay unannounced.
        """
        if not keys:
            return
        width = len(tokens) // len(keys)
        with self._mutex:
            self._reports += 1
            first = self._first_unknown(keys)
            for key in keys[:first]:
                self._pages[key].seen = self._reports
            if first == len(keys):
                if keys[-1] in self._ends:
                    self._ends.move_to_end(keys[-1])
                return
            event = stored(first)
            for number in range(first, len(keys)):
                self._add(keys, number, tokens[number * width : (number + 1) * width], place)
            self._ends[keys[-1]] = None
            self._events.append(event)
            self._withdraw_oldest()

    def absent(self, keys: Sequence[Key], first: int) -> None:
        """Notes that the store lacks page ``first`` of the path of ``keys``, and all after it."""
        if first < len(keys):
            with self._mutex:
                self._reports += 1
                self._withdraw(keys[first])

    def clear(self) -> None:
        """Withdraws all pages, because none of them can be loaded any more."""
        with self._mutex:
            self._reports += 1
            if self._pages:
                self._events.append(self._removed(list(reversed(self._pages))))
            self._pages.clear()
            self._ends.clear()

    def oldest_paths(self, count: int) -> list[AnnouncedPath[Key, Place]]:
        """Returns up to ``count`` paths, those that were seen longest ago."""
        with self._mutex:
            ends = [end for end, _ in zip(self._ends, range(count), strict=False)]
            return [self._path(end) for end in ends]

    def checked(self, path: AnnouncedPath[Key, Place], page_count: int) -> None:
        """Notes that the store had the first ``page_count`` pages of a path, and no more.

        Pages that were reported to be there since the path was asked for stay.
        """
        with self._mutex:
            for key in path.keys[page_count:]:
                page = self._pages.get(key)
                if page is None:
                    break
                if page.seen <= path.asked:
                    self._withdraw(key)
                    break
            if path.keys[-1] in self._ends:
                self._ends.move_to_end(path.keys[-1])

    def _first_unknown(self, keys: Sequence[Key]) -> int:
        """Returns how many pages from the first on are announced."""
        for number in range(len(keys), 0, -1):
            if keys[number - 1] in self._pages:
                return number
        return 0

    def _add(self, keys: Sequence[Key], number: int, tokens: bytes, place: Place) -> None:
        parent = keys[number - 1] if number else None
        if parent is not None:
            self._pages[parent].children.add(keys[number])
            self._ends.pop(parent, None)
        self._pages[keys[number]] = _Page(parent, tokens, place, self._reports)

    def _path(self, end: Key) -> AnnouncedPath[Key, Place]:
        keys, tokens = [], []
        key: Key | None = end
        while key is not None:
            page = self._pages[key]
            keys.append(key)
            tokens.append(page.tokens)
            key = page.parent
        place = self._pages[end].place
        return AnnouncedPath(keys[::-1], b"".join(reversed(tokens)), place, self._reports)

    def _withdraw(self, top: Key) -> None:
        """Withdraws a page and all that follow it, the last ones first."""
        if top not in self._pages:
            return
        gone = [top]
        for key in gone:
            gone += self._pages[key].children
        parent = self._pages[top].parent
        for key in gone:
            del self._pages[key]
            self._ends.pop(key, None)
        self._detach(top, parent)
        self._events.append(self._removed(gone[::-1]))

    def _withdraw_oldest(self) -> None:
        """Withdraws the last pages of the oldest paths while there are too many pages."""
        gone: list[Key] = []
        while len(self._pages) > self._most_pages:
            end, _ = self._ends.popitem(last=False)
            parent = self._pages.pop(end).parent
            gone.append(end)
            self._detach(end, parent)
            if parent is not None and parent in self._ends:
                self._ends.move_to_end(parent, last=False)
        if gone:
            self._events.append(self._removed(gone))

    def _detach(self, key: Key, parent: Key | None) -> None:
        """Takes a page out of its parent's, which may be the last one of a path then."""
        if parent is not None:
            siblings = self._pages[parent].children
            siblings.remove(key)
            if not siblings:
                self._ends[parent] = None
