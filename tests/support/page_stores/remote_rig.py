"""Remote stores over engines in memory, for contract tests and machines of hypothesis."""

from collections.abc import Callable
from itertools import count
from pathlib import Path
from threading import Event
from time import monotonic

from kvstore.remote.errors import EngineUnreachable
from kvstore.remote.remote_settings import RemoteSettings
from kvstore.remote.remote_store import RemoteStore
from kvstore.service.clock import Clock
from kvstore.storage.page_store import PageKey, StoreState
from page_stores.numbered_pages import LIMIT, key
from page_stores.rigs import Capability
from remote.memory_engine import MemoryEngine
from remote.remote_pages import SECRET

SETTINGS = RemoteSettings(
    queue_bytes=1 << 20, reading_bytes=1 << 20, canary_bytes=4096, removal_threads=1
)
# Calls that move pages. Looks use the others.
TRANSFERS = frozenset({"get_many", "put_many"})


def wait_until(condition: Callable[[], object], seconds: float = LIMIT) -> None:
    """Waits until something is so that a thread of the page store does; fails after a time."""
    end = monotonic() + seconds
    pause = Event()
    while not condition():
        assert monotonic() < end, "it did not become so"
        pause.wait(0.002)


def page_name(store: RemoteStore, page: PageKey) -> bytes:
    """Returns the name of a page's value under the revision that a store knows."""
    with store._namespaces.record(page.namespace) as record:
        known = dict(record.known)
    [name] = store._page_names.names([page], known)
    return name


class RemoteStoreRig:
    """A remote store over an engine in memory, whose clock is real."""

    capabilities = frozenset(
        {
            Capability.REOPENS,
            Capability.HOLDS,
            Capability.SPOILS,
            Capability.GOES_AWAY,
            Capability.OWES_REMOVALS,
            Capability.ENDS_READS,
        }
    )

    def __init__(
        self,
        folder: Path,
        values: dict[bytes, tuple[bytes, int]] | None = None,
        *,
        settings: RemoteSettings = SETTINGS,
        secret: bytes = SECRET,
        clock: Clock = monotonic,
        hears: bool = True,
    ) -> None:
        """Rigs with the same ``values`` are hosts that share an engine.

        A store over one that ``hears`` nothing itself is told of removals by other hosts.
        """
        self.hears = hears
        self.lost: list[PageKey] = []
        self.heard: list[bytes] = []
        self.values: dict[bytes, tuple[bytes, int]] = {} if values is None else values
        self._folder = folder / "state"
        self._settings = settings
        self._secret = secret
        self.now = clock
        self._numbers = count(1_000_000)
        self.open()

    def open(self) -> None:
        """Opens a store with a connection of its own."""
        self.engine = MemoryEngine(self.values)
        self.store = RemoteStore(
            self.engine,
            secret=self._secret,
            state_folder=self._folder,
            clock=self.now,
            settings=self._settings,
        )
        self.store.lost = self.lost.extend
        if self.hears:
            self.store.revised = self.heard.append

    def pass_time(self, seconds: float) -> None:
        """Waits."""
        Event().wait(seconds)

    def reopen(self) -> None:
        """Opens another store over the same values and the same folder."""
        self.store.close()
        self.open()

    def hold(self) -> None:
        """Makes reads and writes of values wait."""
        self.engine.set(is_hung=True, hangs=TRANSFERS.__contains__)

    def let_go(self) -> None:
        """Lets them go on."""
        self.engine.set(is_hung=False)

    def spoil(self, number: int) -> None:
        """Changes a byte of a page's value."""
        self.change(key(number), lambda value: value[:99] + bytes([value[99] ^ 1]) + value[100:])

    def change(self, page: PageKey, change: Callable[[bytes], bytes]) -> None:
        """Changes a page's value behind the store's back."""
        name = page_name(self.store, page)
        value, expiry = self.values[name]
        self.values[name] = change(value), expiry

    def evict(self, number: int) -> None:
        """Is not to be called: an engine says nothing."""
        raise NotImplementedError(number)

    def go_away(self) -> None:
        """Makes the engine unreachable, and calls it until the store has noticed."""
        self.engine.set(error=EngineUnreachable("a test cut the line"))
        self.fail()

    def fail(self) -> None:
        """Calls an engine that fails until the store has noticed."""
        end = monotonic() + LIMIT
        while self.store.state is StoreState.OPEN:
            assert monotonic() < end, "the store does not notice that the engine fails"
            self.store.look([key(next(self._numbers))], self.now() + LIMIT)

    def come_back(self) -> None:
        """Makes the engine reachable, and waits for the probe."""
        self.engine.set(error=None, is_hung=False)
        wait_until(lambda: self.store.state is StoreState.OPEN)

    def settle(self) -> None:
        """Waits until no namespace is hidden."""
        wait_until(lambda: not self.hidden)

    @property
    def hidden(self) -> list[bytes]:
        """The namespaces of which nothing may be found at the moment."""
        namespaces = self.store._namespaces
        with namespaces.mutex:
            return [each.digest for each in namespaces.hidden()]

    def close(self) -> None:
        """Closes it."""
        self.let_go()
        self.store.close()
