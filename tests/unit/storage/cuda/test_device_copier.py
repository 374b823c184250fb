"""Copies between a device's slots and the host's: begun together, waited for once."""

import ctypes
from collections.abc import Sequence as Items
from concurrent.futures import thread
from contextlib import closing
from itertools import count
from threading import get_ident

import pytest
from structlog.testing import capture_logs

from device.card import Card, ServerCuda
from device.copier_rig import COUNT, SLOT, Rig, turned
from kvstore.storage.cuda import copy_stream as cuda_copy_stream
from kvstore.storage.cuda.device_copier import CudaCopier
from kvstore.storage.cuda.device_memory import GRANULARITY
from kvstore.storage.errors import CudaFailed, SlotGone
from kvstore.storage.slot_copies import DeviceCopy, copy_all


@pytest.mark.parametrize("batches", [False, True])
def test_a_batch_goes_down_and_up_and_is_waited_for_once(rig: Rig, *, batches: bool) -> None:
    """All copies are begun before the one wait, by one call if the driver can."""
    rig.card.batches = batches
    contents = rig.fill(rig.first)
    ends = ["record_event", "wait_for_event"]
    assert rig.tiers.begin_all(rig.pairs(rig.first, rig.second))() == [None] * COUNT
    assert rig.card.calls == (["begin_batch"] if batches else ["begin_read"] * COUNT) + ends
    assert rig.read(rig.second) == turned(contents)
    contents = rig.fill(rig.second, 100)
    assert rig.tiers.begin_all(rig.pairs(rig.second, rig.first))() == [None] * COUNT
    assert rig.card.calls == (["begin_batch"] if batches else ["begin_write"] * COUNT) + ends
    assert rig.read(rig.first) == turned(contents)


def test_a_refused_batch_is_begun_one_by_one(rig: Rig) -> None:
    """It repeats the copies that the refused call began; one line in the log says so."""
    rig.card.batches = True
    contents = rig.fill(rig.first)
    rig.card.fail = "begin_batch"
    with capture_logs() as lines:
        for _ in range(2):
            assert rig.tiers.begin_all(rig.pairs(rig.first, rig.second))() == [None] * COUNT
    assert rig.card.calls.count("begin_read") == 2 * COUNT
    assert [line["event"] for line in lines] == ["batched_copies_refused"]
    assert rig.read(rig.second) == turned(contents)


def test_a_call_has_a_bounded_number_of_copies(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """More pages are begun by more calls; if one is refused, all are begun one by one."""
    rig.card.batches = True
    contents = rig.fill(rig.first)
    begin, sizes = rig.cuda.begin_batch, list[int]()

    def note(copies: Items[DeviceCopy], stream: int) -> bool:
        sizes.append(len(copies))
        rig.card.fail = "begin_batch" if len(sizes) == 5 else ""
        return begin(copies, stream)

    monkeypatch.setattr(rig.cuda, "begin_batch", note)
    monkeypatch.setattr(cuda_copy_stream, "MOST_IN_A_CALL", 2)
    for _ in range(2):
        assert rig.tiers.begin_all(rig.pairs(rig.first, rig.second))() == [None] * COUNT
    assert sizes == [2, 2, 1, 2, 2]
    assert rig.card.calls.count("begin_read") == COUNT
    assert rig.read(rig.second) == turned(contents)


def test_large_pages_are_begun_one_by_one(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch is only for pages that are copied in less time than a call takes."""
    rig.card.batches = True
    contents = rig.fill(rig.first)
    monkeypatch.setattr(cuda_copy_stream, "BATCHED_BELOW_BYTES", SLOT)
    assert rig.tiers.begin_all(rig.pairs(rig.first, rig.second))() == [None] * COUNT
    assert "begin_batch" not in rig.card.calls
    assert rig.read(rig.second) == turned(contents)
    monkeypatch.setattr(cuda_copy_stream, "BATCHED_BELOW_BYTES", SLOT + 1)
    assert rig.tiers.begin_all([(rig.first, rig.second)])() == [None]
    assert "begin_batch" not in rig.card.calls, "one page is no batch"


def test_both_directions_go_in_one_call(rig: Rig) -> None:
    """Each outcome belongs to its own copy, whichever direction ended first."""
    contents = rig.fill(rig.first)
    rig.fill(rig.second, 50)
    pairs = [(rig.second + 3, rig.first + 4), (rig.first, rig.second), (99 << 32, rig.first)]
    pairs.append((rig.first + 1, rig.second + 1))
    rig.card.fail = "begin_write"
    outcomes = rig.tiers.begin_all(pairs)()
    assert [type(each) for each in outcomes] == [CudaFailed, type(None), SlotGone, type(None)]
    assert rig.read(rig.second)[:2] == contents[:2]
    rig.card.fail = ""
    assert rig.tiers.begin_all(pairs[:2])() == [None, None]
    assert rig.read(rig.first)[4] == bytes([54]) * SLOT


def test_the_stand_in_copies_nothing_before_it_is_waited_for(rig: Rig) -> None:
    """A reader that does not wait finds the old bytes, so the tests here notice a missing wait."""
    rig.fill(rig.first)
    before, stream = bytearray(SLOT), rig.cuda.make_stream()
    (address,) = rig.card.memory
    rig.cuda.begin_read(address, memoryview(before), stream)
    assert not any(before)
    rig.cuda.wait(stream)
    assert all(before)


def test_each_direction_has_threads_of_its_own(rig: Rig) -> None:
    """One begins batches, one waits; another reads and allocates, and another registers."""
    contents = memoryview(bytearray(SLOT))
    works = [
        lambda: rig.upper.allocate(1, SLOT),
        lambda: rig.tiers.write_all([(rig.first, contents)]),
        lambda: copy_all([(rig.upper.place(rig.first), contents)]),
        lambda: rig.device.copier.register(contents),
    ]
    threads = []
    for work in works:
        rig.card.threads.clear()
        work()
        threads.append(set(rig.card.threads))
    assert [len(each) for each in threads] == [1, 2, 2, 1]
    assert len(set.union(*threads)) == 6
    assert get_ident() not in set.union(*threads)


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
    assert (wrong, rig.card.calls[-1]) == ([failing], "wait_for_event")
    contents[failing] = bytes(SLOT)
    assert rig.read(rig.second) == turned(contents)


def test_what_goes_wrong_as_it_is_waited_for_is_of_all(rig: Rig) -> None:
    """CUDA does not say which of them it was; and the next batch is another."""
    contents = rig.fill(rig.first)
    pairs = rig.pairs(rig.first, rig.second)
    rig.card.fail = "wait_for_event"
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


def test_nothing_is_under_way_after_an_unforeseen_error_of_the_wait(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wait that failed is made up for, in the thread that waits."""
    contents = rig.fill(rig.first)

    def fail(event: int) -> None:
        raise ValueError(f"unforeseen at {event}")

    monkeypatch.setattr(rig.cuda, "wait_for_event", fail)
    with pytest.raises(ValueError, match="unforeseen"):
        rig.tiers.begin_all(rig.pairs(rig.first, rig.second))()
    assert not any(rig.card.begun.values())
    assert rig.read(rig.second) == turned(contents)


def test_nothing_is_under_way_if_python_ends_before_the_wait(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its threads take no work then; the batch is waited for by the one that began it."""
    rig.fill(rig.first)
    record = rig.cuda.record_event

    def end_python(stream: int) -> int:
        monkeypatch.setattr(thread, "_shutdown", True)
        return record(stream)

    monkeypatch.setattr(rig.cuda, "record_event", end_python)
    with pytest.raises(RuntimeError, match="interpreter shutdown"):
        rig.tiers.begin_all(rig.pairs(rig.first, rig.second))()
    monkeypatch.undo()
    assert not any(rig.card.begun.values())


@pytest.mark.parametrize("call", ["use", "make_stream", "record_event"])
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
        assert not any(card.begun.values())
        card.fail = ""
        assert copier.begin_all(copies)() == [None] * 2
        assert ctypes.string_at(address, SLOT) == content


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
