"""Looks: which pages of a path an engine has, and whether pages are there."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, takewhile
from typing import Final

from kvstore.remote.history.remote_namespaces import NamespaceRecord
from kvstore.remote.history.shard_revisions import ShardRevisions
from kvstore.remote.liveness.engine_calls import EngineCalls
from kvstore.remote.transfers.page_names import PageNames
from kvstore.storage.page_store import PageKey

# Pages asked for in one trip. Their names cost a quarter of a millisecond.
PAGES_A_TRIP: Final = 128


class Looks:
    """Asks an engine for pages, under the revisions that it has at the moment. Thread-safe."""

    def __init__(self, calls: EngineCalls, gate: ShardRevisions, names: PageNames) -> None:
        self._calls = calls
        self._gate = gate
        self._names = names

    def runs(
        self, record: NamespaceRecord, epoch: int, keys: Iterable[PageKey], deadline: float
    ) -> Iterator[tuple[int, bool]]:
        """Yields how many pages each trip found before the first miss, and whether it had one.

        Takes keys only for the next trip. Raises a ``RemoteError``.
        """
        left = iter(keys)
        while batch := list(islice(left, PAGES_A_TRIP)):
            found = self.found(record, epoch, batch, deadline)
            count = sum(takewhile(bool, found))
            yield count, count < len(batch)
            if count < len(batch):
                return

    def found(
        self, record: NamespaceRecord, epoch: int, keys: Sequence[PageKey], deadline: float
    ) -> list[bool]:
        """Returns whether the engine has each page. Raises a ``RemoteError``.

        None is found if pages of the namespace were removed since ``epoch``.
        """
        shards = self._names.shards(keys)
        revisions = self._gate.current(record, epoch, shards, deadline)
        if revisions is None:
            return [False] * len(keys)
        asked = [each for each in keys if self._names.shard(each) in revisions]
        if not asked:
            return [False] * len(keys)
        names = self._names.names(asked, revisions)
        exist = self._calls.exists_many(names, deadline)
        bad = self._names.bad
        found = {
            key
            for key, name, is_there in zip(asked, names, exist, strict=True)
            if is_there and name not in bad
        }
        return [each in found for each in keys]
