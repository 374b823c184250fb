"""Copies between a device's slots and the host's: begun together, waited for once."""

from collections.abc import Iterator
from contextlib import ExitStack, closing
from itertools import count
from threading import get_ident

import pytest
from cuda_card import Card, ServerCuda
from structlog.testing import capture_logs

from kvstore.storage.arenas import Arenas
from kvstore.storage.copies import DeviceCopy, copy_all
from kvstore.storage.cuda_arena import GRANULARITY, CudaDevice
from kvstore.storage.cuda_copier import CudaCopier
from kvstore.storage.errors import CudaFailed, DeviceUnavailable, SlotGone
from kvstore.storage.host_arena import HostMemory
from kvstore.storage.tiers import Tiers

SLOT = 1000
COUNT = 5


class Rig:
    """An extent of five slots on a device, and one in memory that is registered for it."""

    def __init__(self, stack: ExitStack) -> None:
        self.card = Card(8 * GRANULARITY)
        self.cuda = ServerCuda(self.card)
        self.device = stack.enter_context(closing(CudaDevice(0, lambda: self.cuda)))
        numbers = count(1)
        self.upper = Arenas(
            budget_bytes=8 * GRANULARITY,
            extent_bytes=COUNT * SLOT,
            source=self.device,
            extent_ids=numbers,
        )
        self.lower = Arenas(
            budget_bytes=10 * SLOT,
            extent_bytes=COUNT * SLOT,
            source=HostMemory(register=self.device.copier.register),
            extent_ids=numbers,
            tier=2,
        )
        self.tiers = Tiers(self.upper, self.lower)
        stack.callback(self.tiers.close)
        self.first = self.upper.allocate(1, SLOT).shape.extent_id << 32
        self.second = self.lower.allocate(1, SLOT).shape.extent_id << 32
        self.card.calls.clear()

    def fill(self, first: int, offset: int = 0) -> list[bytes]:
        """Write another content into each slot of an extent; return them."""
        contents = [bytes([offset + n + 1]) * SLOT for n in range(COUNT)]
        pages = [(first + n, memoryview(each)) for n, each in enumerate(contents)]
        assert self.tiers.write_all(pages) == [None] * COUNT
        self.card.calls.clear()
        return contents

    def read(self, first: int) -> list[bytes]:
        """Return the content of each slot of an extent."""
        return [bytes(self.tiers.read(first + n) or b"") for n in range(COUNT)]

    def pairs(self, source: int, target: int) -> list[tuple[int, int]]:
        """Return each slot of an extent with its place in another, in another order."""
        return [(source + n, target + (n + 2) % COUNT) for n in range(COUNT)]


@pytest.fixture
def rig() -> Iterator[Rig]:
    """Both extents, for one test."""
    with ExitStack() as stack:
        yield Rig(stack)


def turned(contents: list[bytes]) -> list[bytes]:
    """Return contents in the order that ``Rig.pairs`` gives them."""
    return contents[-2:] + contents[:-2]


def test_a_batch_goes_down_and_up_and_is_waited_for_once(rig: Rig) -> None:
    """Each page is one copy; all are begun before the one wait, and done when it is over."""
    contents = rig.fill(rig.first)
    assert rig.tiers.begin_all(rig.pairs(rig.first, rig.second))() == [None] * COUNT
    assert rig.card.calls == ["begin_read"] * COUNT + ["wait"]
    assert rig.read(rig.second) == turned(contents)
    contents = rig.fill(rig.second, 100)
    assert rig.tiers.begin_all(rig.pairs(rig.second, rig.first))() == [None] * COUNT
    assert rig.card.calls == ["begin_write"] * COUNT + ["wait"]
    assert rig.read(rig.first) == turned(contents)


def test_the_stand_in_copies_nothing_before_it_is_waited_for(rig: Rig) -> None:
    """Who does not wait finds the bytes of before: so the tests here see that somebody does."""
    rig.fill(rig.first)
    before, stream = bytearray(SLOT), rig.cuda.make_stream()
    (address,) = rig.card.memory
    rig.cuda.begin_read(address, memoryview(before), stream)
    assert not any(before)
    rig.cuda.wait(stream)
    assert all(before)


def test_copies_have_a_thread_of_their_own(rig: Rig) -> None:
    """Who reads a page waits for no batch: neither the thread that allocates nor ours copies."""
    threads = set(rig.card.threads)
    rig.card.threads.clear()
    rig.upper.allocate(1, SLOT)
    allocating = set(rig.card.threads)
    rig.card.threads.clear()
    rig.fill(rig.first)
    assert len(rig.card.threads) == 1
    assert rig.card.threads.isdisjoint({get_ident(), *allocating})
    assert threads == {*rig.card.threads, *allocating}


@pytest.mark.parametrize("failing", range(COUNT))
def test_a_refused_copy_is_its_own(rig: Rig, failing: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others are carried out, and waited for as ever."""
    contents = rig.fill(rig.first)
    begin, numbers = rig.cuda.begin_read, count()

    def refuse_one(address: int, into: memoryview, stream: int) -> None:
        if next(numbers) == failing:
            raise CudaFailed("begin_read: refused")
        begin(address, into, stream)

    monkeypatch.setattr(rig.cuda, "begin_read", refuse_one)
    outcomes = rig.tiers.begin_all(rig.pairs(rig.first, rig.second))()
    wrong = [number for number, each in enumerate(outcomes) if each is not None]
    assert (wrong, rig.card.calls[-1]) == ([failing], "wait")
    contents[failing] = bytes(SLOT)
    assert rig.read(rig.second) == turned(contents)


def test_what_goes_wrong_as_it_is_waited_for_is_of_all(rig: Rig) -> None:
    """CUDA does not say which of them it was; and the next batch is another."""
    contents = rig.fill(rig.first)
    pairs = rig.pairs(rig.first, rig.second)
    rig.card.fail = "wait"
    assert [type(each) for each in rig.tiers.begin_all(pairs)()] == [CudaFailed] * COUNT
    rig.card.fail = ""
    assert rig.tiers.begin_all(pairs)() == [None] * COUNT
    assert rig.read(rig.second) == turned(contents)


def test_nothing_is_under_way_after_an_error_that_nobody_foresaw(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is raised once what was begun before it is done: its targets are somebody's next."""
    contents = rig.fill(rig.first)
    begin, numbers = rig.cuda.begin_read, count()

    def fail_third(address: int, into: memoryview, stream: int) -> None:
        if next(numbers) == 2:
            raise ValueError("unforeseen")
        begin(address, into, stream)

    monkeypatch.setattr(rig.cuda, "begin_read", fail_third)
    with pytest.raises(ValueError, match="unforeseen"):
        rig.tiers.begin_all(rig.pairs(rig.first, rig.second))()
    assert not any(rig.card.begun.values())
    assert rig.read(rig.second)[2:4] == contents[:2]


@pytest.mark.parametrize("call", ["select", "make_stream"])
def test_a_thread_that_cannot_begin_copies_nothing_and_tries_again(call: str) -> None:
    """Each copy says so, as it does of a device that is not there for this thread."""
    card = Card(8 * GRANULARITY)
    cuda = ServerCuda(card)
    content = memoryview(bytes([7]) * SLOT)
    with closing(CudaCopier(0, cuda)) as copier:
        address = cuda.allocate(GRANULARITY)
        copies = [DeviceCopy(address, content, inwards=True)] * 2
        card.fail = call
        assert [type(each) for each in copier.begin_all(copies)()] == [CudaFailed] * 2
        card.fail = ""
        assert copier.begin_all(copies)() == [None] * 2
        assert bytes(cuda.read(address, SLOT)) == content


def test_a_device_that_went_copies_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """What selecting it says is what each copy says."""
    cuda = ServerCuda(Card())

    def select(device: int) -> bytes:
        raise DeviceUnavailable(f"there is no cuda:{device}")

    monkeypatch.setattr(cuda, "select", select)
    with closing(CudaCopier(3, cuda)) as copier:
        (failure,) = copier.begin_all([DeviceCopy(0, memoryview(b""), inwards=True)])()
        assert str(failure) == "there is no cuda:3"


def test_a_slot_whose_extent_is_gone_is_not_copied(rig: Rig) -> None:
    """Neither from nor to it, and the others are."""
    contents = rig.fill(rig.first)
    gone = 99 << 32
    pairs = [(gone, rig.second), (rig.first, gone), (rig.first, rig.second + 1)]
    assert [type(each) for each in rig.tiers.begin_all(pairs)()] == [SlotGone, SlotGone, type(None)]
    assert rig.read(rig.second)[1] == contents[0]
    rig.upper.close()
    assert type(rig.tiers.begin_all(pairs[2:])()[0]) is SlotGone


def test_only_the_host_s_slots_are_there_to_be_written_in_place(rig: Rig) -> None:
    """A device's are not within this process's reach."""
    view = rig.tiers.view(rig.second)
    assert view is not None
    view[:] = bytes([9]) * SLOT
    assert rig.read(rig.second)[0] == bytes([9]) * SLOT
    assert rig.tiers.view(rig.first) is None
    assert rig.tiers.view(99 << 32) is None


def test_what_is_on_a_device_at_both_ends_is_refused(rig: Rig) -> None:
    """There is no such copy between tiers."""
    with pytest.raises(TypeError):
        copy_all([(rig.upper.place(rig.first), rig.upper.place(rig.first + 1))])


def test_memory_is_registered_until_it_goes(rig: Rig) -> None:
    """Each extent of tier 2 for itself, and no longer than it is there."""
    assert list(rig.card.registered.values()) == [COUNT * SLOT]
    extent_id = rig.lower.allocate(1, SLOT).shape.extent_id
    assert list(rig.card.registered.values()) == [COUNT * SLOT] * 2
    rig.lower.destroy(extent_id)
    assert list(rig.card.registered.values()) == [COUNT * SLOT]
    rig.lower.close()
    assert rig.card.registered == {}


def test_what_is_not_registered_is_copied_all_the_same(rig: Rig) -> None:
    """It is said once, and nothing is given back that was not had."""
    rig.card.fail = "register"
    with capture_logs() as lines:
        extent = rig.lower.allocate(1, SLOT)
    told = [line for line in lines if line["event"] == "host_memory_not_registered"]
    assert [line["size_bytes"] for line in told] == [COUNT * SLOT]
    slot = extent.shape.extent_id << 32
    contents = rig.fill(rig.first)
    assert rig.tiers.begin_all([(rig.first, slot)])() == [None]
    assert bytes(rig.tiers.read(slot) or b"") == contents[0]
    rig.lower.destroy(extent.shape.extent_id)
    assert "unregister" not in rig.card.calls


def test_a_registration_that_cuda_keeps_is_logged(rig: Rig) -> None:
    """The memory goes all the same."""
    rig.card.fail = "unregister"
    with capture_logs() as lines:
        rig.lower.close()
    assert [line["event"] for line in lines].count("host_memory_still_registered") == 1
