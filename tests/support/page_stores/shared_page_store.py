"""A page store in memory that hosts share, and what each host remembers of it over a restart."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import chain

from kvstore.service.clock import Clock
from kvstore.storage.page_store import (
    Content,
    Done,
    PageKey,
    PageRead,
    PageWrite,
    Presence,
    ReadAnswer,
    StoreFacts,
    StoreState,
    StoreUse,
)
from page_stores.memory_page_store import Medium, MemoryPageStore

FACTS = StoreFacts(shared=True, loses_silently=True, look_seconds=0.0)


@dataclass
class SharedMedium:
    """The pages that hosts share, and the revision of each namespace, which begins with 1.

    A removal on any host renews it, so no host finds pages of an earlier one.
    """

    medium: Medium = field(default_factory=Medium)
    revisions: dict[bytes, int] = field(default_factory=dict)

    def revision(self, namespace: bytes) -> int:
        """Returns the revision of a namespace."""
        return self.revisions.get(namespace, 1)


@dataclass
class HostMemory:
    """A host's notes, which outlive its stores: revisions that it knows, and removals it owes."""

    seen: dict[bytes, int] = field(default_factory=dict)
    owed: dict[bytes, list[Done]] = field(default_factory=dict)


class HostPageStore:
    """A host's page store over a medium that others share. Not thread-safe.

    A page is named by its key and the revision of its namespace at the submission of its write. It
    calls ``revised`` in ``look`` and ``there``, on the caller's thread.
    """

    facts = FACTS

    def __init__(
        self, shared: SharedMedium, host: HostMemory, *, clock: Clock, queue_bytes: int
    ) -> None:
        self.revised: Callable[[bytes], None] = lambda _: None
        self.in_use: Callable[[], Iterable[bytes]] = lambda: ()
        self.lost: Callable[[Sequence[PageKey]], None] = lambda _: None
        self.shared = shared
        self.host = host
        self.memory = MemoryPageStore(
            shared.medium, clock=clock, facts=FACTS, queue_bytes=queue_bytes, read_seconds=5.0
        )

    @property
    def state(self) -> StoreState:
        """The state now."""
        return self.memory.state

    @property
    def is_empty(self) -> bool:
        """Always False: others may write."""
        return False

    @property
    def reading_bytes(self) -> int:
        """Bytes being read."""
        return self.memory.reading_bytes

    @property
    def reading_room(self) -> int:
        """Bytes that may be read in addition."""
        return self.memory.reading_room

    @property
    def writing_room(self) -> int:
        """Bytes that may be queued in addition."""
        return self.memory.writing_room

    def seen(self, namespace: bytes) -> int:
        """Returns the latest revision that the host knows of."""
        return self.host.seen.get(namespace, 1)

    def look(self, keys: Iterable[PageKey], deadline: float) -> int:
        """Returns the number of leading pages of the present revision."""
        left = iter(keys)
        first = next(left, None)
        if first is None or not self._opens(first.namespace):
            return 0
        return self.memory.look(self._named(chain([first], left)), deadline)

    def there(self, keys: Sequence[PageKey]) -> list[Presence]:
        """Returns the presence of each page."""
        if not keys or not self._opens(keys[0].namespace):
            return [Presence.ABSENT] * len(keys)
        return self.memory.there(list(self._named(keys)))

    def write(self, page: PageWrite, content: Content, done: Done, *, checksum: int | None) -> bool:
        """Begins to write a page under the revision that the host knows of."""
        if page.key.namespace in self.host.owed:
            return False
        [key] = self._named([page.key])
        return self.memory.write(page._replace(key=key), content, done, checksum=checksum)

    def read(
        self, wanted: Sequence[PageRead], done: Callable[[ReadAnswer], None], deadline: float
    ) -> None:
        """Begins to read pages. If the revision is another one at the end, all are misses."""
        namespace = wanted[0].key.namespace
        revision = self.seen(namespace)

        def answer(found: ReadAnswer) -> None:
            if self.shared.revision(namespace) != revision or namespace in self.host.owed:
                found = ReadAnswer((None,) * len(wanted), 0, found.seconds)
            done(found)

        keys = self._named(each.key for each in wanted)
        renamed = [each._replace(key=key) for each, key in zip(wanted, keys, strict=True)]
        self.memory.read(renamed, answer, deadline)

    def remove(self, keys: Sequence[PageKey], done: Done) -> None:
        """Removes all pages of the namespaces of some pages."""
        for number, namespace in enumerate({each.namespace for each in keys}):
            self.remove_namespace(namespace, done if not number else lambda _: None)

    def remove_corrupt(self, keys: Sequence[PageKey], done: Done) -> None:
        """Removes all pages of the namespaces of some pages."""
        self.remove(keys, done)

    def remove_namespace(self, namespace: bytes, done: Done) -> None:
        """Renews a namespace's revision, once the page store is not away."""
        self.host.owed.setdefault(namespace, []).append(done)
        self._settle()

    def use(self) -> StoreUse:
        """Returns the current content."""
        return self.memory.use()

    def close(self) -> None:
        """Carries out what waits, and answers nothing from then on."""
        self.memory.close()

    def come_back(self) -> None:
        """Answers again, and first renews the revisions that it owes."""
        self.memory.come_back()
        self._settle()

    def _settle(self) -> None:
        if self.state is not StoreState.OPEN:
            return
        for namespace, answers in list(self.host.owed.items()):
            current = self.shared.revision(namespace)
            if self.seen(namespace) == current:
                self.host.seen[namespace] = current + 1
            # Otherwise another host removed pages too, and this one has to hear of that.
            self.shared.revisions[namespace] = current + 1
            del self.host.owed[namespace]
            for done in answers:
                done(True)  # noqa: FBT003 - as page stores tell

    def _opens(self, namespace: bytes) -> bool:
        """Returns True if pages of a namespace may be found, after it heard of the revision."""
        self._settle()
        if self.state is not StoreState.OPEN or namespace in self.host.owed:
            return False
        current = self.shared.revision(namespace)
        if current > self.seen(namespace):
            self.revised(namespace)
            self.host.seen[namespace] = current
        return True

    def _named(self, keys: Iterable[PageKey]) -> Iterator[PageKey]:
        for each in keys:
            revision = self.seen(each.namespace).to_bytes(8)
            named = blake2b(each.namespace + revision, digest_size=32).digest()
            yield PageKey(named, each.digest)
