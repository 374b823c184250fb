"""Pages that wait to be written: bounded, and refused at once when there is no room."""

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Condition
from typing import Final

from kvstore.remote.history.remote_namespaces import NamespaceRecord
from kvstore.remote.secret.revisions import Revision
from kvstore.storage.page_store import Content, Done, PageKey, PageWrite

# The part of the queue that one namespace may fill.
NAMESPACE_SHARE: Final = 0.5


@dataclass(eq=False, slots=True, kw_only=True)
class QueuedWrite:
    """A page as it was submitted, with what the host knew of its namespace then.

    ``revision`` is that of its shard, None if this host has not seen one since its start.
    ``submitted`` is a time of the store's clock.
    """

    page: PageWrite
    content: Content
    done: Done
    checksum: int | None
    size: int
    record: NamespaceRecord
    epoch: int
    shard: int
    revision: Revision | None
    submitted: float


class WriteQueue:
    """A queue of ``most_bytes``, in which pages under way count too. Thread-safe."""

    def __init__(self, most_bytes: int) -> None:
        self.queued_bytes = 0
        self._most = most_bytes
        self._changed = Condition()
        self._waiting: deque[QueuedWrite] = deque()
        self._pending: dict[PageKey, QueuedWrite] = {}
        self._by_namespace: Counter[bytes] = Counter()
        self._is_closed = False

    @property
    def room(self) -> int:
        """Bytes that may be added."""
        return self._most - self.queued_bytes

    def is_pending(self, key: PageKey) -> bool:
        """Returns whether a page waits or is under way, and was not removed since."""
        with self._changed:
            return key in self._pending

    def fits(self, namespace: bytes, size: int) -> bool:
        """Returns whether a page would be accepted."""
        with self._changed:
            return self._fits(namespace, size)

    def put(self, write: QueuedWrite) -> bool:
        """Adds a page. Returns False if it is pending, or without room."""
        key = write.page.key
        with self._changed:
            fits = self._fits(key.namespace, write.size)
            if self._is_closed or key in self._pending or not fits:
                return False
            self._pending[key] = write
            self._waiting.append(write)
            self.queued_bytes += write.size
            self._by_namespace[key.namespace] += write.size
            self._changed.notify()
        return True

    def take(self, most_pages: int, most_bytes: int) -> list[QueuedWrite]:
        """Waits for pages. Returns the first ones of one namespace, or none once it is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or self._waiting)
            taken: list[QueuedWrite] = []
            left = most_bytes
            while self._waiting and len(taken) < most_pages:
                first = self._waiting[0]
                is_other = taken and first.record is not taken[0].record
                if is_other or (taken and first.size > left):
                    break
                left -= first.size
                taken.append(self._waiting.popleft())
            return taken

    def finish(self, write: QueuedWrite) -> None:
        """Ends a page that was taken, before its callback is called."""
        with self._changed:
            self._end(write)

    def cancel(self, namespace: bytes) -> list[QueuedWrite]:
        """Takes all pages of a namespace out. Those under way are not pending any more."""
        with self._changed:
            return self._cancel(lambda each: each.page.key.namespace == namespace)

    def close(self) -> list[QueuedWrite]:
        """Takes out all pages, and accepts none from now on."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
            return self._cancel(lambda _: True)

    def drop_older(self, submitted: float) -> Sequence[QueuedWrite]:
        """Takes out the pages that were submitted before a time."""
        with self._changed:
            old: list[QueuedWrite] = []
            while self._waiting and self._waiting[0].submitted < submitted:
                old.append(self._waiting.popleft())
                self._end(old[-1])
            return old

    def _fits(self, namespace: bytes, size: int) -> bool:
        most = self._most * NAMESPACE_SHARE - self._by_namespace[namespace]
        return 0 < size <= min(self._most - self.queued_bytes, most)

    def _cancel(self, is_wanted: Callable[[QueuedWrite], bool]) -> list[QueuedWrite]:
        taken = [each for each in self._waiting if is_wanted(each)]
        if taken:
            self._waiting = deque(each for each in self._waiting if not is_wanted(each))
        for each in taken:
            self._end(each)
        for key in [key for key, each in self._pending.items() if is_wanted(each)]:
            del self._pending[key]
        return taken

    def _end(self, write: QueuedWrite) -> None:
        key = write.page.key
        if self._pending.get(key) is write:
            del self._pending[key]
        self.queued_bytes -= write.size
        self._by_namespace[key.namespace] -= write.size
        if not self._by_namespace[key.namespace]:
            del self._by_namespace[key.namespace]
