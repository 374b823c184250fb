"""A host with a disk of its own over a real remote store, whose engine is in memory."""

from pathlib import Path

from kvstore.core.values.requests import Match
from page_stores.remote_rig import RemoteStoreRig, wait_until
from stores.layered_store import LayeredStore


class LayeredHost:
    """A store with a disk of its own, over an engine that hosts share."""

    def __init__(self, folder: Path, values: dict[bytes, tuple[bytes, int]]) -> None:
        self.rig = RemoteStoreRig(folder, values, hears=False)
        self.layers = LayeredStore(shared=self.rig.store)

    def keep(self) -> None:
        """Writes what was touched to the disk and the engine, and waits for it."""
        cache = self.layers.world.cache
        self.layers.keep()
        wait_until(lambda: self.layers.keep() or not cache.disk_writes)

    def match(self, pages: int) -> Match:
        """Matches a path without a deadline."""
        with self.rig.store._worth._mutex:
            self.rig.store._worth._missing.clear()
        return self.layers.match(pages, remaining=None)

    def close(self) -> None:
        """Ends all."""
        self.rig.store.close()
        self.layers.close()
