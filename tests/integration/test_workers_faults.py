"""Stores with a fault put in on purpose: the tests' eyes see what each does to workers."""

import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import kvstore
from kvstore_client.testing import running_store, wait_until
from pages.stamped_pages import WrongPage, page_count, prompt
from processes.worker_fleet import Fleet, pool_arguments

TOKENS = prompt(1, 2)
PAGES = page_count(TOKENS)
PRESSURE = [prompt(3, number) for number in range(40)]


@contextmanager
def faulty_fleet(folder: Path, file: str, old: str, new: str) -> Iterator[Fleet]:
    """Runs a store from a copy of the sources with one place of the core changed."""
    copy = folder / "kvstore"
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(Path(kvstore.__file__).parent, copy, ignore=ignored)
    path = copy / "core" / file
    text = path.read_text(encoding="utf-8")
    assert text.count(old) == 1, f"the fault does not fit {file} any more"
    path.write_text(text.replace(old, new), encoding="utf-8")
    with running_store(*pool_arguments(), start=False) as store:
        # `python -m` takes the package of the folder that it is started in.
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(folder)
            store.start()
        with Fleet(store) as fleet:
            yield fleet


def test_the_copy_by_itself_is_sound(tmp_path: Path) -> None:
    """A store from such a copy, with nothing changed, passes: it is the fault that is seen."""
    with faulty_fleet(tmp_path, "index/radix.py", "class RadixIndex", "class RadixIndex") as fleet:
        holder, writer = fleet.spawn("holder"), fleet.spawn("writer")
        holder.ask("write", TOKENS)
        holder.ask("match", "held", TOKENS)
        holder.tell("watch", "held")
        writer.ask("churn", PRESSURE, 1)
        assert holder.stop() > 0
        holder.ask("release", "held")
        assert fleet.settled()


def test_a_store_that_evicts_what_is_pinned_is_seen(tmp_path: Path) -> None:
    """Where eviction passes over pins, a holder under pressure finds a page that is not its own."""
    old, new = "max(tail.start, leaf.held_pages)", "tail.start"
    with faulty_fleet(tmp_path, "eviction/leaf_order.py", old, new) as fleet:
        holder, writer = fleet.spawn("holder"), fleet.spawn("writer")
        holder.ask("write", TOKENS)
        holder.ask("match", "held", TOKENS)
        holder.tell("watch", "held")
        writer.tell("churn", PRESSURE, 0)
        with pytest.raises(WrongPage):
            holder.answer()


def test_a_store_that_recycles_at_the_ttl_is_seen(tmp_path: Path) -> None:
    """Where a TTL ends a living worker's lease, that worker finds others in its slots."""
    old = "        lease.state = LeaseState.EXPIRED\n"
    new = "        return [self.end(lease, now)]\n"
    with faulty_fleet(tmp_path, "verbs/lease_lifecycle.py", old, new) as fleet:
        stopped, writer = fleet.spawn("stopped", ttl=5.0), fleet.spawn("writer")
        stopped.ask("acquire", "open", TOKENS)
        stopped.ask("fill", "open")
        assert stopped.ask("own_pages_are_untouched", "open")
        stopped.signal(signal.SIGSTOP)
        assert wait_until(lambda: not fleet.leases("stopped"))
        writer.ask("churn", PRESSURE, 1)
        stopped.signal(signal.SIGCONT)
        with pytest.raises(WrongPage):
            stopped.ask("own_pages_are_untouched", "open")


def test_a_store_that_forgets_a_dead_worker_s_slots_is_seen(tmp_path: Path) -> None:
    """Where a lease ends and its reservations do not, the slots by state show the leak."""
    old = "            lease.drop_reservation(reservation)\n        self._state.ended"
    new = "            pass\n        self._state.ended"
    with faulty_fleet(tmp_path, "verbs/lease_lifecycle.py", old, new) as fleet:
        writer = fleet.spawn("writer", faults="insert.before:1=kill")
        writer.tell("write", TOKENS)
        assert writer.wait_exit() == -signal.SIGKILL
        assert wait_until(lambda: not fleet.leases("writer"))
        assert fleet.slots().reserved == PAGES
        assert not fleet.settled()
