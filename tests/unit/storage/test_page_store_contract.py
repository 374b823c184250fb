"""The contract of page stores: each kind keeps it, as far as its rig can make the faults."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from math import inf
from pathlib import Path
from random import Random

import pytest
from page_stores.numbered_pages import (
    LIMIT,
    NAMESPACE,
    PAGE_BYTES,
    NumberedPages,
    key,
    page_bytes,
)
from page_stores.remote_rig import RemoteStoreRig
from page_stores.rigs import Capability, MemoryStoreRig, SlabStoreRig, StoreRig
from structlog.testing import capture_logs
from xxhash import xxh3_64_intdigest

from kvstore.storage.page_store import Presence, ReadAnswer, StoreState

OTHER = bytes(range(32))
KINDS: dict[str, Callable[[Path], StoreRig]] = {
    "slab": SlabStoreRig,
    "memory": lambda _: MemoryStoreRig(),
    "memory-shared": lambda _: SHARED(),
    "remote": RemoteStoreRig,
}
SHARED = partial(MemoryStoreRig, is_shared=True, look_seconds=0.25)
CAPABILITIES = {
    "slab": SlabStoreRig.capabilities,
    "memory": MemoryStoreRig().capabilities,
    "memory-shared": SHARED().capabilities,
    "remote": RemoteStoreRig.capabilities,
}


@pytest.fixture(params=KINDS)
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StoreRig]:
    """Provides a page store of each kind."""
    made = KINDS[request.param](tmp_path)
    yield made
    made.close()


def needs(*capabilities: Capability) -> pytest.MarkDecorator:
    """Has a test run on the kinds of page stores with some capabilities."""
    kinds = [kind for kind, known in CAPABILITIES.items() if known.issuperset(capabilities)]
    return pytest.mark.parametrize("rig", kinds, indirect=True)


@pytest.fixture
def pages(rig: StoreRig) -> NumberedPages:
    """Provides calls of the page store that wait."""
    return NumberedPages(lambda: rig.store)


def test_what_was_written_is_read(rig: StoreRig, pages: NumberedPages) -> None:
    """Pages come back with their bytes and checksums, and others are misses."""
    assert rig.store.is_empty is not rig.store.facts.shared
    assert pages.write(*range(10))
    assert not rig.store.is_empty
    assert pages.found(*range(12)) == list(range(10))
    answer, into = pages.answer(3, 11, 4)
    assert answer.checksums == (xxh3_64_intdigest(into[0]), None, xxh3_64_intdigest(into[2]))
    assert answer.byte_count == 2 * PAGE_BYTES
    counters = rig.store.use().counters
    assert (counters.written_pages, counters.written_bytes) == (10, 10 * PAGE_BYTES)
    assert (counters.read_pages, counters.read_bytes) == (12, 12 * PAGE_BYTES)


@pytest.mark.parametrize("size", [100, 4096, 5000])
@pytest.mark.parametrize("ranks", [1, 2])
def test_pages_of_any_size_are_whole(pages: NumberedPages, size: int, ranks: int) -> None:
    """A page may lie in several pieces."""
    assert pages.write(0, 1, size=size, ranks=ranks)
    assert pages.found(0, 1, size=size) == [0, 1]


def test_a_page_of_another_size_is_a_miss(pages: NumberedPages) -> None:
    """A read of another size is a miss, so no reader gets a part of a page."""
    assert pages.write(0, size=4096)
    assert pages.found(0, size=PAGE_BYTES) == []
    assert pages.found(0, size=4096) == [0]


def test_a_page_is_found_in_its_own_namespace_only(pages: NumberedPages) -> None:
    """The same digest under another namespace is another page."""
    assert pages.write(1)
    assert pages.found(1, namespace=OTHER) == []
    assert pages.write(1, namespace=OTHER)
    assert pages.found(1, namespace=OTHER) == [1]


def test_a_look_takes_few_keys_beyond_its_end(rig: StoreRig, pages: NumberedPages) -> None:
    """A caller computes digests only as far as pages are there, or as one trip asks for."""
    assert pages.write(0, 1, 2)
    keys = (key(number) for number in (0, 1, 2, *range(5, 1000)))
    assert rig.store.look(keys, inf) == 3
    assert len(list(keys)) > 800
    assert rig.store.look([key(number) for number in (0, 5, 1)], inf) == 1
    assert rig.store.look([], inf) == 0


@needs(Capability.ENDS_LOOKS)
def test_a_look_ends_at_its_deadline(rig: StoreRig, pages: NumberedPages) -> None:
    """It returns the pages that were found by then."""
    assert pages.write(*range(8))
    keys = [key(number) for number in range(8)]
    before = rig.now()
    count = rig.store.look(keys, before + 3 * rig.store.facts.look_seconds)
    assert 0 < count < 8
    assert rig.store.look(keys, rig.now()) == 0
    assert rig.store.look(keys, inf) == 8


def test_a_page_that_is_there_is_not_written_again(pages: NumberedPages) -> None:
    """The first copy stays."""
    assert pages.write(1)
    assert pages.begin(1) is None
    assert pages.found(1) == [1]


@needs(Capability.HOLDS)
def test_a_page_is_pending_until_it_is_stored(rig: StoreRig, pages: NumberedPages) -> None:
    """It is not found and not accepted again meanwhile."""
    assert pages.write(0)
    rig.hold()
    begun = pages.begin(1, 0)
    assert begun is not None
    assert pages.begin(1, 0) is None
    wanted = [key(0), key(1), key(2)]
    assert rig.store.there(wanted) == [Presence.STORED, Presence.PENDING, Presence.ABSENT]
    assert rig.store.look(wanted, inf) == 1
    rig.let_go()
    assert begun.result(LIMIT)
    assert rig.store.there(wanted) == [Presence.STORED, Presence.STORED, Presence.ABSENT]


@needs(Capability.HOLDS)
def test_a_full_queue_refuses_and_does_not_wait(rig: StoreRig, pages: NumberedPages) -> None:
    """The room for writes and for reads shrinks by what waits, and is back afterwards."""
    assert pages.write(0)
    rig.hold()
    room = rig.store.writing_room
    begun = pages.begin(1, 0)
    assert begun is not None
    assert rig.store.writing_room == room - PAGE_BYTES
    assert pages.begin(2, 0, size=room) is None
    assert rig.store.use().counters.refused_writes > 0
    rig.let_go()
    assert begun.result(LIMIT)
    rig.hold()
    reading = rig.store.reading_room
    answer, _ = pages.begin_read(0)
    assert (rig.store.reading_room, rig.store.reading_bytes) == (reading - PAGE_BYTES, PAGE_BYTES)
    rig.let_go()
    assert answer.result(LIMIT).leading == 1
    assert (rig.store.reading_room, rig.store.reading_bytes) == (reading, 0)
    assert rig.store.writing_room == room


def test_a_page_that_changed_before_it_was_written_is_never_served(pages: NumberedPages) -> None:
    """The writer's checksum is compared, and not computed anew."""
    assert pages.write(1, checksum=xxh3_64_intdigest(page_bytes(1)))
    begun = pages.begin(2, 1, checksum=xxh3_64_intdigest(page_bytes(1)))
    assert begun is not None
    begun.result(LIMIT)
    assert pages.found(1, 2) == [1]


@needs(Capability.SPOILS)
def test_a_spoilt_page_is_a_miss_and_leaves(rig: StoreRig, pages: NumberedPages) -> None:
    """Others are served, and it can be written again."""
    assert pages.write(*range(5))
    rig.spoil(2)
    assert pages.found(*range(5)) == [0, 1, 3, 4]
    assert rig.lost == [key(2)]
    assert rig.store.use().counters.corrupt_pages == 1
    assert rig.store.look([key(number) for number in range(5)], inf) == 2
    begun = pages.begin(2, 1)
    assert begun is not None
    assert begun.result(LIMIT)
    assert pages.found(*range(5)) == list(range(5))


@needs(Capability.EVICTS)
def test_an_evicted_page_is_a_miss_and_told(rig: StoreRig, pages: NumberedPages) -> None:
    """Its writer may offer it again."""
    assert pages.write(0, 1)
    rig.evict(1)
    assert rig.lost == [key(1)]
    assert pages.found(0, 1) == [0]
    assert rig.store.there([key(1)]) == [Presence.ABSENT]


def test_a_removal_takes_what_comes_after(rig: StoreRig, pages: NumberedPages) -> None:
    """Nothing finds it from then on; an absent page counts as removed."""
    assert pages.write(0, 1, 2, 3)
    assert pages.remove(1, 99)
    assert pages.found(1, 2, 3) == []
    assert rig.store.look([key(number) for number in range(4)], inf) <= 1
    assert not any(rig.store.there([key(1), key(2), key(3)]))
    assert pages.remove(99)
    assert rig.lost == []


@needs(Capability.KEEPS_SIBLINGS)
def test_a_removal_spares_other_pages(pages: NumberedPages) -> None:
    """The pages before it, and those beside it."""
    assert pages.write(0, 1, 2)
    assert pages.write(10, 11)
    assert pages.remove(1)
    assert pages.found(0, 1, 2, 10, 11) == [0, 10, 11]


@needs(Capability.HOLDS)
@pytest.mark.parametrize("whole", [False, True])
def test_a_removal_cancels_writes_under_way(
    rig: StoreRig, pages: NumberedPages, *, whole: bool
) -> None:
    """No page that was accepted before it is stored after it, nor one that comes after."""
    assert pages.write(0)
    rig.hold()
    begun = [pages.begin(1, 0), pages.begin(2, 1)]
    gone: Future[bool] = Future()
    if whole:
        rig.store.remove_namespace(NAMESPACE, gone.set_result)
    else:
        rig.store.remove([key(1)], gone.set_result)
    assert not any(rig.store.there([key(1), key(2)]))
    rig.let_go()
    assert gone.result(LIMIT)
    assert [each is not None and each.result(LIMIT) for each in begun] == [False, False]
    assert pages.found(1, 2) == []


def test_a_namespace_is_removed_alone(pages: NumberedPages) -> None:
    """Other namespaces keep their pages."""
    assert pages.write(0, 1)
    assert pages.write(0, 1, namespace=OTHER)
    assert pages.remove_namespace()
    assert pages.found(0, 1) == []
    assert pages.found(0, 1, namespace=OTHER) == [0, 1]
    assert pages.write(0)
    assert pages.found(0, 1) == [0]


@needs(Capability.HOLDS)
def test_a_read_under_way_is_right_whatever_is_removed(rig: StoreRig, pages: NumberedPages) -> None:
    """A page is served with its own bytes or not at all, also if another is written meanwhile."""
    assert pages.write(0, 1, 2)
    rig.hold()
    answer, into = pages.begin_read(0, 1, 2)
    gone: Future[bool] = Future()
    rig.store.remove([key(1)], gone.set_result)
    # A namespace takes no page before a removal that waits for an engine.
    waits = Capability.OWES_REMOVALS in rig.capabilities
    namespace = OTHER if waits else NAMESPACE
    begun = [pages.begin(number, namespace=namespace) for number in range(10, 20)]
    rig.let_go()
    assert gone.result(LIMIT)
    assert all(each is not None and each.result(LIMIT) for each in begun)
    for number, found in enumerate(answer.result(LIMIT).found):
        assert not found or into[number] == page_bytes(number)


@needs(Capability.HOLDS, Capability.ENDS_READS)
def test_memory_is_the_readers_again_after_the_answer(rig: StoreRig) -> None:
    """A read that outlives its deadline changes nobody else's page."""
    check_memory_after_a_deadline(rig)


def check_memory_after_a_deadline(rig: StoreRig) -> None:
    """Ends a read by its deadline, uses its memory for another page, and lets the read go on."""
    pages = NumberedPages(lambda: rig.store)
    assert pages.write(0, 1)
    rig.hold()
    answer, into = pages.begin_read(0, 1, deadline=rig.now() + 1.0)
    assert not answer.done()
    rig.pass_time(2.0)
    assert answer.result(LIMIT).leading == 0
    for each in into:
        each[:] = page_bytes(50)
    rig.let_go()
    assert pages.found(0, 1) == [0, 1]
    assert [each == page_bytes(50) for each in into] == [True, True]


def test_a_late_write_into_a_readers_memory_is_found() -> None:
    """The check before fails for a page store that goes on after its answer."""
    with pytest.raises(AssertionError):
        check_memory_after_a_deadline(MemoryStoreRig(is_careless=True))


@needs(Capability.REOPENS)
def test_pages_are_there_after_a_restart(rig: StoreRig, pages: NumberedPages) -> None:
    """With their bytes, and those that were removed are not."""
    assert pages.write(0, 1, 2)
    assert pages.write(10, 11, namespace=OTHER)
    assert pages.remove(1)
    rig.reopen()
    assert pages.found(10, 11, namespace=OTHER) == [10, 11]
    assert pages.found(1, 2) == []


@needs(Capability.GOES_AWAY)
def test_a_page_store_that_is_away_answers_nothing(rig: StoreRig, pages: NumberedPages) -> None:
    """Each call is a miss, a refusal or False, and all is as before once it is back."""
    assert pages.write(0, 1)
    rig.hold()
    begun = pages.begin(2, 1)
    answer, _ = pages.begin_read(0)
    rig.go_away()
    rig.let_go()
    assert rig.store.state is StoreState.AWAY
    assert begun is not None
    assert not begun.result(LIMIT)
    assert answer.result(LIMIT).leading == 0
    assert pages.begin(3, 1) is None
    assert (pages.found(0), rig.store.look([key(0)], inf)) == ([], 0)
    assert not any(rig.store.there([key(0)]))
    if Capability.OWES_REMOVALS not in rig.capabilities:
        assert not pages.remove(0)
        assert not pages.remove_namespace()
    rig.come_back()
    assert rig.store.state is StoreState.OPEN
    assert pages.found(0, 1) == [0, 1]
    assert pages.write(3)


@needs(Capability.GOES_AWAY, Capability.OWES_REMOVALS)
def test_a_removal_is_carried_out_once_the_page_store_is_back(
    rig: StoreRig, pages: NumberedPages
) -> None:
    """Nothing finds the pages before, and the answer comes with the removal."""
    assert pages.write(0, 1)
    rig.go_away()
    gone: Future[bool] = Future()
    rig.store.remove([key(0)], gone.set_result)
    assert not gone.done()
    rig.come_back()
    assert gone.result(LIMIT)
    assert pages.found(0, 1) == []
    assert pages.write(0, 1)
    assert pages.found(0, 1) == [0, 1]


def test_a_closed_page_store_answers_nothing(rig: StoreRig, pages: NumberedPages) -> None:
    """Accepted calls are answered by then, and every later one is a miss or a refusal."""
    begun = [pages.begin(number) for number in range(20)]
    answer, _ = pages.begin_read(0)
    rig.store.close()
    rig.store.close()
    assert all(each is not None and each.done() for each in begun)
    assert answer.done()
    assert rig.store.state is rig.store.use().state is StoreState.CLOSED
    assert pages.begin(30) is None
    assert pages.found(1) == []
    assert rig.store.look([key(1)], inf) == 0
    assert not any(rig.store.there([key(1)]))
    assert not pages.remove(1)
    assert not pages.remove_namespace()


def test_a_callback_that_raises_stops_nothing(rig: StoreRig, pages: NumberedPages) -> None:
    """The error is logged, and later calls are carried out."""
    failed: Future[bool] = Future()
    failed.set_result(True)
    with capture_logs() as logs:
        rig.store.remove([], failed.set_result)
        # Answered after that one.
        assert pages.remove()
    assert pages.write(1)
    assert len([each for each in logs if each["event"].endswith("callback_failed")]) == 1


def test_callbacks_may_call_the_page_store(rig: StoreRig, pages: NumberedPages) -> None:
    """None is called while the page store holds a lock."""
    assert pages.write(0)
    found: Future[list[Presence]] = Future()

    def end(answer: ReadAnswer) -> None:
        assert answer.leading == 0
        with ThreadPoolExecutor(1) as other:
            found.set_result(list(other.submit(rig.store.there, [key(0)]).result(LIMIT)))

    rig.store.read([], end, inf)
    assert found.result(LIMIT) == [Presence.STORED]


def test_threads_use_it_side_by_side(rig: StoreRig, pages: NumberedPages) -> None:
    """Each page is stored once, served with its own bytes, and each callback called once."""

    def work(seed: int) -> int:
        random = Random(seed)
        stored = 0
        for _ in range(12):
            number = random.randrange(16)
            begun = pages.begin(number)
            stored += begun is not None and begun.result(LIMIT)
            pages.found(*random.sample(range(16), 4))
            rig.store.look([key(each) for each in range(4)], inf)
            if random.random() < 0.2:
                pages.remove(number)
        return stored

    with ThreadPoolExecutor(4) as threads:
        stored = sum(threads.map(work, range(4)))
    assert rig.store.use().counters.written_pages == stored
    assert rig.lost == []
