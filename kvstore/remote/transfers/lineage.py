"""Pages that this host wrote or found lately: their parents, depths, and last refreshes."""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from threading import Lock
from typing import Final, NamedTuple

from kvstore.remote.expiry import UNKNOWN_DEPTH
from kvstore.storage.page_store import PageKey, PageWrite

# Some 400 bytes each.
MOST_PAGES: Final = 1 << 16


class Aged(NamedTuple):
    """A page whose expiry is to be extended, and the number of pages before it."""

    key: PageKey
    depth: int


class _Page:
    """A page's place on its path. It has the key as it was given, with the segment."""

    __slots__ = ("bucket", "depth", "key", "parent", "stored_under")

    def __init__(self, key: PageKey) -> None:
        self.key = key
        self.parent: PageKey | None = None
        self.depth = UNKNOWN_DEPTH
        self.bucket = -1
        # The revision under which it was written or found.
        self.stored_under = b""


class Lineage:
    """A bounded memory of pages. Thread-safe.

    A page whose expiry is extended takes all its known ancestors along, once a bucket. Otherwise a
    child that was written later than its parent would outlive it.
    """

    def __init__(self, most: int = MOST_PAGES) -> None:
        self._most = most
        self._mutex = Lock()
        self._pages: OrderedDict[PageKey, _Page] = OrderedDict()

    def add(self, page: PageWrite) -> None:
        """Notes a page that is to be written, and its parent."""
        with self._mutex:
            self._link(self._page(page.key), page.parent)

    def follow(self, path: Sequence[PageKey]) -> None:
        """Notes consecutive pages of a path."""
        with self._mutex:
            before: PageKey | None = None
            for key in path:
                page = self._page(key)
                if before is not None and page.parent is None:
                    self._link(page, before.digest)
                before = key

    def depth(self, key: PageKey) -> int:
        """Returns how many pages are before a page, or ``UNKNOWN_DEPTH`` and more."""
        with self._mutex:
            known = self._pages.get(key)
            return UNKNOWN_DEPTH if known is None else known.depth

    def note_stored(self, keys: Iterable[PageKey], revision: bytes) -> None:
        """Notes that pages are stored under a revision of their shard."""
        with self._mutex:
            for each in keys:
                self._page(each).stored_under = revision

    def note_absent(self, keys: Iterable[PageKey]) -> None:
        """Notes that pages are not stored."""
        with self._mutex:
            for each in keys:
                if each in self._pages:
                    self._pages[each].stored_under = b""

    def is_stored(self, key: PageKey, revision: bytes) -> bool:
        """Returns whether a page was stored under a revision when this host last heard of it."""
        with self._mutex:
            known = self._pages.get(key)
            return known is not None and known.stored_under == revision

    def refreshed(self, keys: Iterable[PageKey], bucket: int) -> list[Aged]:
        """Returns pages and ancestors whose expiry is of an earlier bucket, and notes the new one.

        An ancestor is returned before its descendants.
        """
        with self._mutex:
            aged: list[Aged] = []
            for key in keys:
                line = list(self._line(key, bucket))
                aged += (Aged(each.key, each.depth) for each in reversed(line))
            return aged

    def note_written(self, key: PageKey, bucket: int) -> None:
        """Notes that a page was written in a bucket, which gave it its expiry."""
        with self._mutex:
            self._page(key).bucket = bucket

    def _line(self, key: PageKey, bucket: int) -> Iterator[_Page]:
        at: _Page | None = self._pages.get(key)
        while at is not None and at.bucket != bucket:
            at.bucket = bucket
            yield at
            at = None if at.parent is None else self._pages.get(at.parent)

    def _link(self, page: _Page, parent: bytes) -> None:
        """Notes a page's parent, which is the namespace for the first one of a path."""
        if parent == page.key.namespace:
            page.depth = 0
            return
        page.parent = PageKey(page.key.namespace, parent)
        above = self._pages.get(page.parent)
        page.depth = (UNKNOWN_DEPTH if above is None else above.depth) + 1

    def _page(self, key: PageKey) -> _Page:
        page = self._pages.get(key)
        if page is None:
            page = self._pages[key] = _Page(key)
            if len(self._pages) > self._most:
                self._pages.popitem(last=False)
        self._pages.move_to_end(key)
        return page
