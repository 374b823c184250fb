"""Hosts that share an engine in memory, each with a store of its own."""

from collections.abc import Callable
from math import inf
from pathlib import Path

from page_stores.numbered_pages import NAMESPACE, NumberedPages, key
from page_stores.remote_rig import SETTINGS, RemoteStoreRig, wait_until

from kvstore.remote.remote_settings import RemoteSettings
from kvstore.storage.page_store import Presence
from remote.remote_pages import SECRET


class RemoteHost(RemoteStoreRig):
    """A host, and calls of its store that wait. ``values`` are those of the engine."""

    def __init__(
        self,
        folder: Path,
        values: dict[bytes, tuple[bytes, int]] | None = None,
        *,
        settings: RemoteSettings = SETTINGS,
        secret: bytes = SECRET,
    ) -> None:
        super().__init__(folder, values, settings=settings, secret=secret)
        self.pages = NumberedPages(lambda: self.store)

    def look(self, *numbers: int, namespace: bytes = NAMESPACE) -> int:
        """Returns the leading pages that a look finds, although it missed a moment ago."""
        with self.store._worth._mutex:
            self.store._worth._missing.clear()
        return self.store.look([key(each, namespace) for each in numbers], inf)

    def finds(self, *numbers: int, namespace: bytes = NAMESPACE) -> list[int]:
        """Returns the pages that a read finds."""
        return self.pages.found(*numbers, namespace=namespace)

    def knows(self, *numbers: int, namespace: bytes = NAMESPACE) -> list[Presence]:
        """Returns the presence of pages, once nothing is hidden."""
        self.settle()
        return self.store.there([key(each, namespace) for each in numbers])

    def publish(self, *numbers: int, namespace: bytes = NAMESPACE) -> None:
        """Writes pages, as a keeper does."""
        self.knows(*numbers, namespace=namespace)
        self.settle()
        assert self.pages.write(*numbers, namespace=namespace)

    def until(self, condition: Callable[[], object]) -> None:
        """Waits until something is so."""
        wait_until(condition)


class Hosts:
    """Two hosts, ``a`` and ``b``, over one engine, and the engine's content."""

    def __init__(self, folder: Path, *, settings: RemoteSettings = SETTINGS) -> None:
        self.values: dict[bytes, tuple[bytes, int]] = {}
        self.a = RemoteHost(folder / "a", self.values, settings=settings)
        self.b = RemoteHost(folder / "b", self.values, settings=settings)

    def restore(self, values: dict[bytes, tuple[bytes, int]]) -> None:
        """Gives the engine the content of before, as a failover or a backup does."""
        self.values.clear()
        self.values.update(values)

    def close(self) -> None:
        """Ends both."""
        self.a.close()
        self.b.close()
