"""The slab's index: the slot of each page, and how many pages follow it."""

from collections.abc import Iterable, Iterator

from kvstore.storage.page_store import PageKey
from kvstore.storage.slab.layout import INDEX_BITS, INDEX_MASK
from kvstore.storage.slab.segment import Segment


class SlabIndex:
    """Pages by key, with the number of cached pages that follow each. Not thread-safe.

    A page takes some 300 bytes with its header. ``segments`` are by number. The caller writes a
    page's header into its segment before ``add``, and leaves it there until the page is dropped.
    """

    def __init__(self, segments: dict[int, Segment]) -> None:
        self.page_count = 0
        self._segments = segments
        self._namespaces: dict[bytes, dict[bytes, int]] = {}
        # The number of pages whose parent is absent, by that parent.
        self._waiting: dict[PageKey, int] = {}

    def find(self, key: PageKey) -> int | None:
        """Returns the slot of a page, or None."""
        pages = self._namespaces.get(key.namespace)
        return None if pages is None else pages.get(key.digest)

    def add(self, key: PageKey, slot: int) -> None:
        """Adds a page that the index does not have."""
        self._namespaces.setdefault(key.namespace, {})[key.digest] = slot
        self.page_count += 1
        segment, index = self._at(slot)
        segment.children[index] = self._waiting.pop(key, 0)
        self._count(PageKey(key.namespace, segment.parent_digest(index)), 1)

    def restore(self, namespace: bytes, digest: bytes, slot: int) -> int | None:
        """Adds a page after a restart. Returns its other slot if the page is there twice.

        Counts no children: ``count_children`` does so once all pages are in.
        """
        pages = self._namespaces.get(namespace)
        if pages is None:
            pages = self._namespaces[namespace] = {}
        before = pages.get(digest)
        pages[digest] = slot
        return before

    def count_children(self) -> None:
        """Counts the children of restored pages."""
        for namespace, pages in self._namespaces.items():
            self.page_count += len(pages)
            for slot in pages.values():
                segment = self._segments[slot >> INDEX_BITS]
                parent = segment.parent_digest(slot & INDEX_MASK)
                above = pages.get(parent)
                if above is not None:
                    self._segments[above >> INDEX_BITS].children[above & INDEX_MASK] += 1
                elif parent != namespace:
                    self._count(PageKey(namespace, parent), 1)

    def drop(self, key: PageKey) -> int | None:
        """Drops a page. Returns its slot, or None if the index does not have it."""
        slot = self.find(key)
        if slot is None:
            return None
        pages = self._namespaces[key.namespace]
        del pages[key.digest]
        if not pages:
            del self._namespaces[key.namespace]
        self.page_count -= 1
        segment, index = self._at(slot)
        if segment.children[index]:
            self._waiting[key] = segment.children[index]
            segment.children[index] = 0
        self._count(PageKey(key.namespace, segment.parent_digest(index)), -1)
        return slot

    def keys(self, namespace: bytes) -> list[PageKey]:
        """Returns every page of a namespace."""
        return list(self.iterate(namespace))

    def iterate(self, namespace: bytes) -> Iterator[PageKey]:
        """Yields the pages of a namespace, which MUST NOT change meanwhile."""
        return (PageKey(namespace, digest) for digest in self._namespaces.get(namespace, ()))

    def namespaces(self) -> dict[bytes, int]:
        """Returns how many pages each namespace has, by its digest."""
        return {namespace: len(pages) for namespace, pages in self._namespaces.items()}

    def orphans(self) -> list[PageKey]:
        """Returns every page that no chain of pages connects to its namespace's root.

        O(pages); for use after a restart.
        """
        return [key for namespace in self._namespaces for key in self._orphans_in(namespace)]

    def after(self, keys: Iterable[PageKey]) -> list[PageKey]:
        """Returns every descendant of the given pages, which are already dropped.

        Also returns pages below any missing page, since that page's ancestors are unknown.
        O(pages of their namespaces) if there are any, else O(keys and missing pages).
        """
        named = {key.namespace for key in keys}
        lacking = {key.namespace for key in self._waiting if key.namespace in named}
        return [key for namespace in lacking for key in self._orphans_in(namespace)]

    def _orphans_in(self, namespace: bytes) -> list[PageKey]:
        """Returns the pages of a namespace that no chain of pages connects to its root.

        A chain that ends in a circle does not reach the root.
        """
        pages = self._namespaces.get(namespace, {})
        # Whether each page has such a chain, by page.
        known = {namespace: False}
        for page in pages:
            digest, path = page, []
            while digest not in known:
                known[digest] = True
                slot = pages.get(digest)
                if slot is None:
                    break
                path.append(digest)
                segment, index = self._at(slot)
                digest = segment.parent_digest(index)
            known.update(dict.fromkeys(path, known[digest]))
        return [PageKey(namespace, digest) for digest in pages if known[digest]]

    def _count(self, parent: PageKey, change: int) -> None:
        """Adds a change to the parent's count, which is kept aside while the parent is absent."""
        if parent.digest == parent.namespace:
            return
        slot = self.find(parent)
        if slot is not None:
            segment, index = self._at(slot)
            segment.children[index] += change
            return
        left = self._waiting.get(parent, 0) + change
        if left:
            self._waiting[parent] = left
        else:
            self._waiting.pop(parent, None)

    def _at(self, slot: int) -> tuple[Segment, int]:
        return self._segments[slot >> INDEX_BITS], slot & INDEX_MASK

    def drop_all(self, keys: Iterable[PageKey]) -> list[int]:
        """Drops pages. Returns the slots of those that the index had."""
        return [slot for key in keys if (slot := self.drop(key)) is not None]
