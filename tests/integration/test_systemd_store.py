"""systemd's store of descriptors as a carrier, on a stand-in: no systemd runs here."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvstore.holder.carrier import CarrierFull, CarrierLost, CarrierRefused, DescriptorCarrier
from kvstore.holder.holder_process import close_all, is_dead
from kvstore.holder.systemd_store import SystemdStore
from kvstore.service_manager import ServiceManager
from processes.deposit_worker import sealed_memfd
from processes.notify_stand_in import NotifyStandIn

# The service's next process: prints each name, its kind, and the bytes or the death behind it.
SUCCESSOR = """
import os
from kvstore.holder.holder_process import DescriptorKind, is_dead
from kvstore.holder.systemd_store import SystemdStore
from kvstore.service_manager import ServiceManager

store = SystemdStore(ServiceManager.from_environment())
assert not {"LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"} & os.environ.keys()
for name, (descriptor, identity) in sorted(store.descriptors().items()):
    assert not os.get_inheritable(descriptor)
    if identity.kind == DescriptorKind.MEMFD:
        print(name, os.pread(descriptor, 9, 0).decode())
    else:
        print(name, is_dead(descriptor))
store.drop(["b"])
store.close()
"""
MOST = 40


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[NotifyStandIn]:
    """Provides a service manager for forty descriptors."""
    with NotifyStandIn(tmp_path / "notify", MOST) as made:
        yield made


def store_of(manager: NotifyStandIn, **environment: str) -> SystemdStore:
    """Returns the carrier of this process, as if systemd had started it."""
    return SystemdStore(ServiceManager(str(manager.path)), manager.environment() | environment)


def test_the_next_process_gets_what_was_stored(manager: NotifyStandIn) -> None:
    """By names, whatever the order; a dead process's pidfd is kept although it hung up."""
    store: DescriptorCarrier = store_of(manager)
    child = subprocess.Popen(["true"])
    memory = {name: sealed_memfd(name, name.encode()) for name in ("a", "b")}
    pidfd = os.pidfd_open(child.pid)
    assert store.put(memory | {"process-1": pidfd})
    child.wait()
    assert is_dead(pidfd)
    close_all([*memory.values(), pidfd])
    assert manager.run("-c", SUCCESSOR).splitlines() == ["a a", "b b", "process-1 True"]
    assert sorted(name for name, _, _ in manager.stored) == ["a", "process-1"]


def test_a_put_is_acknowledged(manager: NotifyStandIn) -> None:
    """Once it returns, the manager has read every message; so it is with a drop, and at the end."""
    store = store_of(manager)
    memory = sealed_memfd("a", b"a")
    store.put({f"a-{each}": memory for each in range(MOST)})
    assert len(manager.stored) == MOST
    store.drop(["a-3"])
    assert len(manager.stored) == MOST - 1
    store.end()
    assert manager.stored == []
    os.close(memory)


def test_more_than_it_keeps_is_refused(manager: NotifyStandIn) -> None:
    """The manager would close them without a word, so none of them is sent."""
    store = store_of(manager)
    memory = sealed_memfd("a", b"a")
    with pytest.raises(CarrierFull, match="FileDescriptorStoreMax"):
        store.put({f"a-{each}": memory for each in range(MOST + 1)})
    assert manager.stored == []
    os.close(memory)


def test_a_name_keeps_its_memory(manager: NotifyStandIn) -> None:
    """A deposit is repeated without harm, and another's memory under the name is refused."""
    store = store_of(manager)
    one, other = sealed_memfd("a", b"one"), sealed_memfd("a", b"other")
    assert store.put({"a": one})
    assert store.put({"a": one})
    with pytest.raises(CarrierRefused, match="another identity"):
        store.put({"a": other})
    assert len(manager.stored) == 1
    close_all([one, other])


def test_memory_is_made_and_stored(manager: NotifyStandIn) -> None:
    """It has all its pages; a size that is impossible is refused."""
    store = store_of(manager)
    descriptor = store.make("a", 1 << 20)
    assert os.fstat(descriptor).st_blocks * 512 >= 1 << 20
    assert len(manager.stored) == 1
    with pytest.raises(CarrierFull):
        store.make("b", -1)
    os.close(descriptor)


def test_what_is_passed_is_checked(manager: NotifyStandIn, tmp_path: Path) -> None:
    """A file, or two descriptors of one name, end the start; those of another process are left."""
    with (tmp_path / "file").open("wb") as file:
        passed = {
            "LISTEN_PID": str(os.getpid()),
            "LISTEN_FDS": "1",
            "LISTEN_FDNAMES": "a",
        }
        with pytest.raises(CarrierRefused, match="neither a memfd"):
            SystemdStore(ServiceManager(None), dict(passed), first_descriptor=file.fileno())
        passed |= {"LISTEN_FDS": "2", "LISTEN_FDNAMES": "a:a"}
        with pytest.raises(CarrierRefused, match="2 descriptors"):
            SystemdStore(ServiceManager(None), dict(passed), first_descriptor=file.fileno())
    assert store_of(manager, LISTEN_PID="1", LISTEN_FDS="1", LISTEN_FDNAMES="a").descriptors() == {}


def test_without_a_manager_nobody_owns(tmp_path: Path) -> None:
    """Nobody takes the message, and the caller is told at its start."""
    for address in (None, str(tmp_path / "nobody")):
        with pytest.raises(CarrierLost, match="takes no message"):
            SystemdStore(ServiceManager(address), {}).own(1)


def test_a_manager_that_is_away_gets_all_later(tmp_path: Path) -> None:
    """Deposits and removals of that time are repeated, and a deposit that was dropped is not."""
    memory = {name: sealed_memfd(name, name.encode()) for name in ("a", "b", "c")}
    before = NotifyStandIn(tmp_path / "notify", MOST)
    with before:
        store = store_of(before)
        store.put({"a": memory["a"]})
    before.path.unlink()
    assert not store.put({"b": memory["b"], "c": memory["c"]})
    assert (store.is_lost(), store.behind) == (True, 2)
    assert not store.drop(["a", "c"])
    assert not store.restore()
    assert store.behind == 1
    with pytest.raises(CarrierLost):
        store.end()
    assert not store.put({"b": memory["b"]})
    with NotifyStandIn(tmp_path / "notify", MOST) as manager:
        manager.stored.append(("a", os.dup(memory["a"]), False))
        assert store.restore()
        assert [name for name, _, _ in manager.stored] == ["b"]
        assert (store.is_lost(), store.behind) == (False, 0)
        assert store.restore()
    close_all(memory.values())


def test_memory_beyond_the_bounds_is_refused(manager: NotifyStandIn, tmp_path: Path) -> None:
    """The kernel grants more, and kills later."""
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemAvailable: 3 kB\n", encoding="ascii")
    store = SystemdStore(ServiceManager(str(manager.path)), manager.environment(), root=tmp_path)
    with pytest.raises(CarrierFull, match="a needs 4096 bytes, and MemAvailable has 3072"):
        store.make("a", 4096)
    assert manager.stored == []


def test_it_has_the_methods_of_a_carrier(manager: NotifyStandIn) -> None:
    """Ownership is the manager's business, and it is never behind."""
    store = store_of(manager)
    assert store.own(7) == (0, None)
    store.give_up(1)
    assert (store.restore(), store.is_lost(), store.behind) == (True, False, 0)
    store.close()
    store.close()
