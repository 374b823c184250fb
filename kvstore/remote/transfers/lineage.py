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

    __slots__ = ("bucket", "depth", "key", "parent", "stored_at", "stored_under")

    def __init__(self, key: PageKey) -> None:
        self.key = key
        self.parent: PageKey | None = None
        self.depth = UNKNOWN_DEPTH
        self.bucket = -1
        # The revision under which it was written or found.
        self.stored_under = b""
        self.stored_at = 0.0


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

    def note_stored(self, keys: Iterable[PageKey], revision: bytes, now: float) -> None:
        """Notes that pages are stored under a revision of their shard."""
        with self._mutex:
            for each in keys:
                page = self._page(each)
                page.stored_under, page.stored_at = revision, now

    def note_absent(self, keys: Iterable[PageKey], asked: float) -> None:
        """Notes that pages were not stored when they were asked for, unless they were since."""
        with self._mutex:
            for each in keys:
                page = self._pages.get(each)
                if page is not None and page.stored_at <= asked:
                    page.stored_under = b""

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

    def descendants(self, keys: Sequence[PageKey]) -> list[PageKey]:
        """Returns pages and all that are known to come after them, in any order.

        Costs a step for each page in memory.
        """
        with self._mutex:
            children: dict[PageKey, list[PageKey]] = {}
            for key, page in self._pages.items():
                if page.parent is not None:
                    children.setdefault(page.parent, []).append(key)
            found = dict.fromkeys(self._as_known(each) for each in keys)
            left = list(found)
            while left:
                new = [each for each in children.get(left.pop(), ()) if each not in found]
                found.update(dict.fromkeys(self._as_known(each) for each in new))
                left += new
            return list(found)

    def note_written(self, key: PageKey, bucket: int) -> None:
        """Notes that a page was written in a bucket, which gave it its expiry."""
        with self._mutex:
            self._page(key).bucket = bucket

    def _as_known(self, key: PageKey) -> PageKey:
        """Returns a key with the segment under which the page was noted."""
        known = self._pages.get(key)
        return key if known is None else known.key

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
