"""Names of pages under the revisions of their shards, and those whose values are no pages."""

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from threading import Lock
from typing import Final

from kvstore.remote.errors import RemoteError
from kvstore.remote.expiry import Expiry
from kvstore.remote.history.controls import Controls
from kvstore.remote.history.remote_namespaces import NamespaceRecord, RemoteNamespaces
from kvstore.remote.liveness.engine_calls import EngineCalls
from kvstore.remote.secret.names import RemoteNames, RemotePage
from kvstore.remote.secret.revisions import Revision
from kvstore.remote.transfers.lineage import Aged, Lineage
from kvstore.remote.transfers.upkeep import Upkeep
from kvstore.storage.page_store import PageKey

MOST_BAD: Final = 4096


class BadValues:
    """Names whose values were not the pages that they should be. Bounded and thread-safe.

    The page counts as absent, so its next write replaces the value. Values of other versions and
    secrets are not deleted: others may use them.
    """

    def __init__(self) -> None:
        self._mutex = Lock()
        self._names: OrderedDict[bytes, None] = OrderedDict()

    def add(self, name: bytes) -> None:
        """Notes a bad value."""
        with self._mutex:
            self._names[name] = None
            if len(self._names) > MOST_BAD:
                self._names.popitem(last=False)

    def discard(self, name: bytes) -> None:
        """Notes that a value was written anew."""
        with self._mutex:
            self._names.pop(name, None)

    def __contains__(self, name: object) -> bool:
        """Returns whether the value was bad when it was read last."""
        with self._mutex:
            return name in self._names


class PageNames:
    """Names of a namespace's pages. Thread-safe."""

    def __init__(self, names: RemoteNames) -> None:
        self.bad = BadValues()
        self._names = names

    def shard(self, key: PageKey) -> int:
        """Returns the shard of a page."""
        return self._names.shard(key.namespace, key.segment)

    def shards(self, keys: Iterable[PageKey]) -> list[int]:
        """Returns the shards of pages, in order, each once."""
        return list(dict.fromkeys(map(self.shard, keys)))

    def page(self, key: PageKey, revision: Revision, size: int) -> RemotePage:
        """Returns a page as its reader asks for it.

        Its digest says how many of its tokens count.
        """
        return RemotePage(key.namespace, self.shard(key), revision.identity, key.digest, 0, size)

    def name(self, page: RemotePage) -> bytes:
        """Returns the name of a page's value."""
        return self._names.page(page)

    def names(self, keys: Iterable[PageKey], revisions: Mapping[int, Revision]) -> list[bytes]:
        """Returns the names of pages under the revisions of their shards."""
        return [self.name(self.page(key, revisions[self.shard(key)], 0)) for key in keys]


class Refreshes:
    """Extends the expiries of pages in use, their ancestors and their shards, once a bucket."""

    def __init__(
        self,
        names: PageNames,
        namespaces: RemoteNamespaces,
        controls: Controls,
        lineage: Lineage,
        expiry: Expiry,
        upkeep: Upkeep,
        quiet_calls: EngineCalls,
    ) -> None:
        self._names = names
        self._namespaces = namespaces
        self._controls = controls
        self._lineage = lineage
        self._expiry = expiry
        self._upkeep = upkeep
        self._quiet_calls = quiet_calls
        self._mutex = Lock()
        self._bucket = -1
        self._shards: set[tuple[bytes, int]] = set()

    def use(self, record: NamespaceRecord, keys: Sequence[PageKey]) -> None:
        """Extends the lives of pages that were found, within seconds."""
        aged = self._lineage.refreshed(keys, self._expiry.bucket)
        self._upkeep.refresh(self._named(record, aged))
        self.use_shards(record, self._names.shards(keys))

    def before_writes(
        self, record: NamespaceRecord, keys: Sequence[PageKey], deadline: float
    ) -> None:
        """Extends the lives of the ancestors of pages that are about to be written.

        It waits, so that no crash in between leaves a child that outlives its parent. It is best
        effort: an engine may refuse it and take the write.
        """
        written = set(keys)
        aged = self._lineage.refreshed(keys, self._expiry.bucket)
        due = list(self._named(record, [each for each in aged if each.key not in written]))
        if due:
            names, lives = zip(*due, strict=True)
            with suppress(RemoteError):
                self._quiet_calls.refresh_many(names, lives, deadline)

    def use_shards(self, record: NamespaceRecord, shards: Iterable[int]) -> None:
        """Extends the lives of control values, within seconds."""
        bucket = self._expiry.bucket
        with self._mutex:
            if bucket != self._bucket:
                self._bucket = bucket
                self._shards.clear()
            due = {(record.digest, each) for each in shards} - self._shards
            self._shards |= due
        life = self._controls.life_ms
        self._upkeep.refresh((self._controls.name(*each), life) for each in due)

    def _named(self, record: NamespaceRecord, aged: Sequence[Aged]) -> Iterable[tuple[bytes, int]]:
        """Yields names and lives of the pages whose shard's revision is known."""
        with self._namespaces.mutex:
            live = {shard: record.known[shard] for shard in record.live}
        for each in aged:
            revision = live.get(self._names.shard(each.key))
            if revision is not None:
                page = self._names.page(each.key, revision, 0)
                yield self._names.name(page), self._expiry.life_ms(each.depth)
