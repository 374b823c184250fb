"""A host with a store on a real engine, and calls of it that wait."""

from collections.abc import Callable
from pathlib import Path
from time import monotonic

from page_stores.numbered_pages import LIMIT, NAMESPACE, NumberedPages, key
from page_stores.remote_rig import wait_until

from kvstore.remote.engine import RemoteEngine
from kvstore.remote.remote_settings import RemoteSettings
from kvstore.remote.remote_store import RemoteStore
from kvstore.storage.page_store import StoreState
from remote.remote_pages import SECRET

# A busy machine is no failure. Tests of times have settings of their own.
PATIENT = RemoteSettings(timeout_seconds=5.0, read_seconds=20.0, write_seconds=30.0)


class EngineHost:
    """A store with a journal in a folder. ``heard`` has the removals by other hosts."""

    def __init__(
        self,
        make_engine: Callable[[], RemoteEngine],
        folder: Path,
        *,
        settings: RemoteSettings = PATIENT,
    ) -> None:
        self.heard: list[bytes] = []
        self.pages = NumberedPages(lambda: self.store)
        self._make_engine = make_engine
        self._folder = folder
        self._settings = settings
        self.open()

    def open(self) -> None:
        """Opens a store."""
        self.store = RemoteStore(
            self._make_engine(),
            secret=SECRET,
            state_folder=self._folder,
            clock=monotonic,
            settings=self._settings,
        )
        self.store.revised = self.heard.append

    def close(self) -> None:
        """Closes it."""
        self.store.close()

    def look(self, *numbers: int, seconds: float = LIMIT) -> int:
        """Returns the leading pages that a look finds, although it missed a moment ago."""
        with self.store._worth._mutex:
            self.store._worth._missing.clear()
        return self.store.look([key(each) for each in numbers], monotonic() + seconds)

    def finds(self, *numbers: int) -> list[int]:
        """Returns the pages that a read finds, each compared with its bytes."""
        return self.pages.found(*numbers)

    def write(self, *numbers: int) -> list[bool]:
        """Writes those of some pages that are not there, as a keeper does."""
        self.settle()
        there = self.store.there([key(each) for each in numbers])
        absent = [each for each, is_there in zip(numbers, there, strict=True) if not is_there]
        begun = [self.pages.begin(each, each - 1 if each else None) for each in absent]
        return [each is not None and each.result(LIMIT) for each in begun]

    def wait_for(self, state: StoreState) -> None:
        """Looks for other pages until the store has a state."""
        numbers = iter(range(10_000_000, 20_000_000))

        def is_so() -> bool:
            self.look(next(numbers), seconds=0.2)
            return self.store.state is state

        wait_until(is_so)

    def settle(self) -> None:
        """Waits until nothing of the namespace is hidden."""
        namespaces = self.store._namespaces

        def is_hidden() -> bool:
            with namespaces.record(NAMESPACE) as record:
                return record.is_hidden

        wait_until(lambda: not is_hidden())
