"""Rigs for contract tests: a page store of each kind, with faults as far as they can be made."""

from collections.abc import Callable
from dataclasses import replace
from enum import Enum, auto
from functools import partial
from pathlib import Path
from threading import Event
from typing import Protocol

from kvstore.storage.page_store import PageKey, PageStore, StoreFacts
from kvstore.storage.slab.slab import Slab
from page_stores.memory_page_store import Medium, MemoryPageStore
from page_stores.numbered_pages import LIMIT, key
from slab.rig import SlabRig, config


class Capability(Enum):
    """A property of a page store, or a fault that its rig can make."""

    REOPENS = auto()
    """``reopen``: pages are there after a restart of the store."""
    KEEPS_SIBLINGS = auto()
    """A removal spares pages of the namespace that are not after the removed ones."""
    HOLDS = auto()
    """``hold`` and ``let_go``: writes and reads wait before they touch the pages."""
    SPOILS = auto()
    """``spoil``: a page changes behind the page store's back."""
    EVICTS = auto()
    """``evict``: a page leaves by itself."""
    GOES_AWAY = auto()
    """``go_away`` and ``come_back``."""
    OWES_REMOVALS = auto()
    """A removal while the page store is away is carried out once it is back, and answered then."""
    ENDS_READS = auto()
    """A read ends at its deadline; ``pass_time`` makes deadlines pass."""
    ENDS_LOOKS = auto()
    """A look-up takes time, and ends at its deadline."""


class StoreRig(Protocol):
    """A page store, and its faults. ``lost`` has the pages that left without a request."""

    capabilities: frozenset[Capability]
    lost: list[PageKey]

    @property
    def store(self) -> PageStore:
        """The page store, which is open."""
        ...

    def now(self) -> float:
        """Returns the time of deadlines."""
        ...

    def pass_time(self, seconds: float) -> None:
        """Waits until so many seconds of the page store's clock have passed."""
        ...

    def reopen(self) -> None:
        """Closes the page store, and opens another over the same pages."""
        ...

    def hold(self) -> None:
        """Makes writes and reads wait that begin from now on."""
        ...

    def let_go(self) -> None:
        """Lets all that waits go on."""
        ...

    def spoil(self, number: int) -> None:
        """Changes a byte of a page."""
        ...

    def evict(self, number: int) -> None:
        """Evicts a page."""
        ...

    def go_away(self) -> None:
        """Makes the page store unreachable."""
        ...

    def come_back(self) -> None:
        """Makes it reachable again."""
        ...

    def close(self) -> None:
        """Ends all. Idempotent."""
        ...


class SlabStoreRig:
    """A slab of two segments, whose disk can be held."""

    capabilities = frozenset(
        {Capability.REOPENS, Capability.KEEPS_SIBLINGS, Capability.HOLDS, Capability.SPOILS}
    )

    def __init__(self, folder: Path) -> None:
        self._rig = SlabRig(replace(config(folder / "slab"), queue_bytes=1 << 19))
        self.lost = self._rig.lost
        self._gate = Event()
        self._gate.set()
        self._hold_disk()

    @property
    def store(self) -> Slab:
        """The slab."""
        return self._rig.slab

    def now(self) -> float:
        """Returns any time, since a slab knows no deadline."""
        return 0.0

    def pass_time(self, seconds: float) -> None:
        """Is not to be called."""
        raise NotImplementedError(seconds)

    def reopen(self) -> None:
        """Opens the file again."""
        self._rig.reopen()
        self._hold_disk()

    def hold(self) -> None:
        """Makes calls of the disk wait."""
        self._gate.clear()

    def let_go(self) -> None:
        """Lets calls of the disk go on."""
        self._gate.set()

    def spoil(self, number: int) -> None:
        """Changes a byte of a page in the file."""
        self._rig.flip([self._rig.slot_offset(number) + 7])

    def evict(self, number: int) -> None:
        """Is not to be called."""
        raise NotImplementedError(number)

    def go_away(self) -> None:
        """Is not to be called."""
        raise NotImplementedError

    come_back = go_away

    def close(self) -> None:
        """Closes the slab."""
        self.let_go()
        self._rig.slab.close()

    def _hold_disk(self) -> None:
        """Makes the slab's copies pass the gate."""
        mover = self._rig.slab._reader._mover
        mover.read = partial(self._pass, mover.read)  # type: ignore[method-assign]
        mover.write = partial(self._pass, mover.write)  # type: ignore[method-assign]

    def _pass(self, copy: Callable[..., None], *run: object) -> None:
        assert self._gate.wait(LIMIT)
        copy(*run)


class MemoryStoreRig:
    """A page store in memory, on a clock of its own."""

    def __init__(
        self, *, is_shared: bool = False, look_seconds: float = 0.0, is_careless: bool = False
    ) -> None:
        """A shared one forgets whole namespaces, and may lose pages without a word."""
        self._medium = Medium()
        self._is_careless = is_careless
        self._time = 1000.0
        self.facts = StoreFacts(
            shared=is_shared, loses_silently=is_shared, look_seconds=look_seconds
        )
        self.capabilities = frozenset(
            each
            for each in Capability
            if each is not Capability.OWES_REMOVALS
            and (each is not Capability.KEEPS_SIBLINGS or not is_shared)
            and (each is not Capability.ENDS_LOOKS or look_seconds)
        )
        self.lost: list[PageKey] = []
        self.store = self._open()

    def now(self) -> float:
        """Returns the time that was set."""
        return self._time

    def pass_time(self, seconds: float) -> None:
        """Moves the clock on."""
        self._time += seconds
        self.store.tick()

    def reopen(self) -> None:
        """Makes another page store over the same pages."""
        self.store.close()
        self.store = self._open()

    def hold(self) -> None:
        """Makes calls wait."""
        self.store.held = True

    def let_go(self) -> None:
        """Carries out the calls that wait."""
        self.store.let_go()

    def spoil(self, number: int) -> None:
        """Changes a byte of a page."""
        self.store.spoil(key(number), 7)

    def evict(self, number: int) -> None:
        """Evicts a page."""
        self.store.evict(key(number))

    def go_away(self) -> None:
        """Makes it answer nothing."""
        self.store.go_away()

    def come_back(self) -> None:
        """Makes it answer again."""
        self.store.come_back()

    def close(self) -> None:
        """Closes it."""
        self.store.close()

    def _open(self) -> MemoryPageStore:
        store = MemoryPageStore(
            self._medium,
            clock=self.now,
            pass_time=self._tell_time,
            facts=self.facts,
            forgets_namespaces=self.facts.shared,
            is_careless=self._is_careless,
        )
        store.lost = self.lost.extend
        return store

    def _tell_time(self, seconds: float) -> None:
        self._time += seconds
