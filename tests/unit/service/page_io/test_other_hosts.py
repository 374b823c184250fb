"""Removals by another host: pages leave the memory and the disk of this one, and nothing else."""

from threading import Thread

import pytest
from page_stores.memory_page_store import FACTS, MemoryPageStore

from kvstore.service.page_io.slow_tier import SlowTier
from kvstore.storage.errors import RemovalUnsettled
from kvstore.storage.page_store import Done, PageKey, StoreState
from kvstore.storage.write_admission import FirstTouch
from stores.disk_store import LIMIT
from stores.store_world import Worlds
from stores.tiered_store import PAGES, Tiered

SHARED = FACTS._replace(shared=True, loses_silently=True)


class Shared(MemoryPageStore):
    """A page store that other hosts share, and that hears of their removals as a test says."""

    def revised(self, namespace: bytes) -> None:
        """Does nothing until somebody wants to hear of it."""

    def in_use(self) -> list[bytes]:
        """Returns none until somebody says which."""
        return []


class OneOfHosts(Tiered):
    """A store with a disk, whose place a page store in memory takes, and a shared page store."""

    def __init__(self, worlds: Worlds) -> None:
        self.near = MemoryPageStore()
        self.far = Shared(facts=SHARED)
        near = SlowTier(self.near, admission=FirstTouch())
        far = SlowTier(self.far, number=1, admission=FirstTouch())
        super().__init__(worlds(slots=16, extent_slots=16, slow_tier=near, remote_tier=far))
        self.namespace = self.world.cache.namespaces[self.namespace_id]

    def keep(self) -> None:
        """Writes what was touched to both."""
        for keeper in self.world.store.tier3.keepers:
            keeper.step()


@pytest.fixture
def host(worlds: Worlds) -> OneOfHosts:
    """Provides a host."""
    return OneOfHosts(worlds)


def test_what_another_host_removed_leaves_memory_and_disk(host: OneOfHosts) -> None:
    """Nothing is removed from the page store that they share. What comes later is written."""
    host.publish(0)
    host.keep()
    assert [len(each.medium.pages) for each in (host.near, host.far)] == [PAGES, PAGES]
    host.far.revised(host.namespace.digest)
    assert host.namespace.index.page_count == 0
    assert [len(each.medium.pages) for each in (host.near, host.far)] == [0, PAGES]
    host.far.medium.pages.clear()
    host.publish(0)
    host.keep()
    assert [len(each.medium.pages) for each in (host.near, host.far)] == [PAGES, PAGES]


def test_a_shared_store_knows_the_namespaces_in_use(host: OneOfHosts) -> None:
    """It asks for removals in them, whether or not anybody writes pages or looks for them."""
    assert host.far.in_use() == [host.namespace.digest]
    host.world.store.delete_namespace(host.caller.identity, host.namespace_id)
    assert host.far.in_use() == []


def test_a_namespace_that_is_not_open_leaves_the_disk(host: OneOfHosts) -> None:
    """Nothing is found there by whoever opens it later."""
    host.publish(0)
    host.keep()
    digest, store = host.namespace.digest, host.world.store
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(host.near, "remove_namespace", lambda *asked: asked[1](True))  # noqa: FBT003
        store.delete_namespace(host.caller.identity, host.namespace_id)
    assert len(host.near.medium.pages) == PAGES
    host.far.revised(digest)
    assert not host.near.medium.pages


def test_a_write_that_began_before_is_submitted_before(
    host: OneOfHosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page store thus knows that its page is older than what it heard of."""
    hearing = Thread(target=host.far.revised, args=[host.namespace.digest], daemon=True)
    write = host.far.write

    def submit(*page: object, **how: object) -> bool:
        if not hearing.ident:
            hearing.start()
        hearing.join(0.05)
        assert hearing.is_alive()
        return write(*page, **how)  # type: ignore[arg-type]

    monkeypatch.setattr(host.far, "write", submit)
    host.publish(0)
    host.keep()
    hearing.join(LIMIT)
    assert not hearing.is_alive()
    assert len(host.far.medium.pages) == PAGES


def test_a_disk_that_may_have_the_pages_again_is_told(host: OneOfHosts) -> None:
    """The shared page store must not remember then that this host knows."""
    host.publish(0)
    host.keep()
    host.near.state = StoreState.FAILED
    with pytest.raises(RemovalUnsettled):
        host.far.revised(host.namespace.digest)
    assert host.namespace.index.page_count == 0


@pytest.mark.parametrize("is_corrupt", [False, True])
def test_pages_that_changed_are_removed_apart_from_those_of_an_operator(
    host: OneOfHosts, monkeypatch: pytest.MonkeyPatch, *, is_corrupt: bool
) -> None:
    """The shared page store limits what a host with bad memory can do to all. A disk does not."""
    host.publish(0)
    host.keep()
    told: list[str] = []
    for name in ("remove", "remove_corrupt"):
        call = getattr(host.far, name)

        def note(keys: list[PageKey], done: Done, name: str = name, call: Done = call) -> None:
            told.append(name)
            call(keys, done)  # type: ignore[call-arg]

        monkeypatch.setattr(host.far, name, note)
    state, first = host.world.cache.state, next(iter(host.far.medium.pages))
    assert state.disk is not None
    state.disk.remove(host.namespace, first.digest, is_corrupt=is_corrupt)
    assert host.world.store.tier3.removals.settle()
    assert told[0] == ("remove_corrupt" if is_corrupt else "remove")
    assert len(host.near.medium.pages) == len(host.far.medium.pages) < PAGES
