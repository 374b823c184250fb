"""The requests of a connector's threads to a real store."""

from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any

import pytest

from kvstore_client import Acquired, Namespace, NamespaceIdentity, OpaqueContent, PageLayout
from kvstore_client.calls.lease_calls import LeaseCalls
from kvstore_client.engines.store_access import StoreAccess
from kvstore_client.testing import RunningStore, wait_until
from kvstore_vllm.engine.connector_settings import PlannerSettings
from kvstore_vllm.identity.request_key import RequestKey
from kvstore_vllm.scheduler.step_operations import AcquirePages, InsertPages, ReleasePages
from kvstore_vllm.scheduler.store_threads import ThreadedAnswers
from kvstore_vllm.scheduler.store_work import StoreWork
from kvstore_vllm.scheduler.transfer_planner import TransferPlanner
from kvstore_vllm.step_plan import StepPlan
from naive.request import NaiveRequest

PAGE, PAGE_BYTES = 4, 4096
KEY = RequestKey()
TOKENS = list(range(24))
IDENTITY = NamespaceIdentity(b"a model of thirty-two bytes at mo", display_name="tiny")
LAYOUT = PageLayout(PAGE, PAGE_BYTES, OpaqueContent(b"blocks as they are"))
# One extent of 64 pages.
pytestmark = pytest.mark.store("--tier1-bytes", "256KiB", "--extent-bytes", "256KiB")


@pytest.fixture
def access(store: RunningStore) -> Iterator[StoreAccess]:
    """Provides an engine's access to the store."""
    made = StoreAccess(
        str(store.runtime_dir), IDENTITY, LAYOUT, name="vllm tiny", call_timeout=20.0
    )
    assert wait_until(lambda: made.usable and made.memory.failure is None)
    yield made
    made.close()


def acquire(work: StoreWork, tokens: Sequence[int], *, yielding: bool = False) -> Acquired | None:
    """Acquires the pages of one request, in a step of its own."""
    [acquired] = work.run_step([AcquirePages(KEY, tokens, yielding, lambda _: None)])
    assert not isinstance(acquired, bool)
    return acquired


def insert(acquired: Acquired, tokens: Sequence[int], start: int, end: int) -> InsertPages:
    """Returns the insert of some pages."""
    return InsertPages(KEY, tokens, acquired, start, end, None, lambda _: None)


def save(work: StoreWork, memory: Namespace, tokens: Sequence[int], fill: int) -> Acquired:
    """Saves pages in two inserts, as a request does."""
    acquired = acquire(work, tokens, yielding=True)
    assert acquired is not None
    assert acquired.reservation is not None
    for page in acquired.reservation.pages:
        memory.page(page)[:] = bytes([fill]) * PAGE_BYTES
    start = acquired.reservation.start_page
    end = start + acquired.reservation.page_count
    middle = start + acquired.reservation.page_count // 2
    for part in ((start, middle), (middle, end)):
        assert work.run_step([insert(acquired, tokens, *part)]) == [True]
    return acquired


def test_what_is_saved_is_found_whole_and_as_it_was(access: StoreAccess) -> None:
    """A saved sequence of whole pages is matched to its end with its bytes, and can be extended."""
    work = StoreWork(access, PAGE, 20.0)
    save(work, access.memory, TOKENS[:16], 1).release()
    match = work.look_up(KEY, TOKENS[:16])
    assert match is not None
    with match:
        assert match.page_count == 4
        assert {bytes(access.memory.page(page)[:2]) for page in match.pages} == {b"\x01\x01"}
        runs = match.pages.dated_runs
        assert sum(len(run.generations) for run in runs) == 4
        assert access.memory.recycled(runs) == []
    acquired = save(work, access.memory, TOKENS, 2)
    assert acquired.match.page_count == 4
    assert acquired.reservation is not None
    assert acquired.reservation.page_count == 2
    acquired.release()
    everything = acquire(work, TOKENS)
    assert everything is not None
    with everything:
        assert everything.match.page_count == 6


def test_another_salt_finds_nothing(access: StoreAccess) -> None:
    """A salted request finds nothing of the unsalted one, and its namespace is opened once."""
    work = StoreWork(access, PAGE, 20.0)
    tokens = [each + 100 for each in TOKENS]
    save(work, access.memory, tokens, 1).release()
    salted = RequestKey(plain_salt=b"a user's own, thirty-two bytes..")
    match = work.look_up(salted, tokens)
    assert match is not None
    assert match.failure is None
    assert match.page_count == 0
    assert access.namespace(salted.salt) is access.namespace(salted.salt)
    assert access.namespace(b"") is access.memory


def test_who_yields_gets_nothing_while_another_saves_the_same(access: StoreAccess) -> None:
    """A yielding acquire gets no slots while another saves the same prompt. Others get them."""
    work = StoreWork(access, PAGE, 20.0)
    tokens = [each + 200 for each in TOKENS]
    first = acquire(work, tokens, yielding=True)
    second = acquire(work, tokens, yielding=True)
    third = acquire(work, tokens)
    assert first is not None
    assert second is not None
    assert third is not None
    assert second.in_flight is not None
    assert second.reservation is None
    assert third.reservation is not None
    for each in (first, second, third):
        each.release()


def test_of_a_store_that_is_full_the_first_pages_can_be_had(access: StoreAccess) -> None:
    """In a full store an acquire gets the first part of the missing pages."""
    work = StoreWork(access, PAGE, 20.0)
    most = acquire(work, list(range(1000, 1000 + 50 * PAGE)))
    assert most is not None
    assert most.reservation is not None
    rest = acquire(work, list(range(3000, 3000 + 40 * PAGE)))
    assert rest is not None
    assert rest.reservation is not None
    assert 0 < rest.reservation.page_count < 40
    assert rest.reservation.start_page == 0
    most.release()
    rest.release()


def test_without_a_store_all_is_a_miss(tmp_path: object) -> None:
    """Without a store every request misses at once, and there is no lease to share."""
    access = StoreAccess(str(tmp_path), IDENTITY, LAYOUT, name="vllm tiny", call_timeout=0.05)
    work = StoreWork(access, PAGE, 0.05)
    assert not access.usable
    assert access.share_lease() is None
    match = work.look_up(KEY, TOKENS)
    assert match is None or match.page_count == 0
    acquired = acquire(work, TOKENS, yielding=True)
    assert acquired is None or acquired.reservation is None
    access.close()


def test_requests_of_a_step_are_one_call(
    access: StoreAccess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them acquire in one call, and insert and release in another; each has its outcome."""
    work = StoreWork(access, PAGE, 20.0)
    calls: list[list[str]] = []

    def counted(self: LeaseCalls, request: Any, timeout: float) -> Any:  # noqa: ANN401
        calls.append([each.WhichOneof("operation") for each in request.operations])
        return run_step(self, request, timeout)

    run_step = LeaseCalls.run_step
    monkeypatch.setattr(LeaseCalls, "run_step", counted)
    prompts = [[each + 10_000 * number for each in TOKENS[:8]] for number in range(1, 5)]
    done: list[Any] = []
    wanted = [AcquirePages(KEY, each, True, done.append) for each in prompts]  # noqa: FBT003
    found = [each for each in work.run_step(wanted) if isinstance(each, Acquired)]
    assert calls == [["acquire"] * 4]
    # The last one's reservation is given up, so its insert fails, and no other.
    assert found[3].reservation is not None
    found[3].reservation.abort()
    ending = [
        operation
        for acquired, tokens in zip(found, prompts, strict=True)
        for operation in (insert(acquired, tokens, 0, 2), ReleasePages(KEY, acquired))
    ]
    assert work.run_step(ending) == [True, None, True, None, True, None, False, None]
    assert [each.count("insert") for each in calls] == [0, 3]
    matches = [work.look_up(KEY, each) for each in prompts]
    assert [each and each.page_count for each in matches] == [2, 2, 2, 0]
    for match in matches:
        assert match is not None
        match.release()


class NotedAnswers(ThreadedAnswers):
    """Answers of real threads, and the bounds of the waits for them."""

    def __init__(self) -> None:
        super().__init__(4)
        self.waits: list[float] = []

    def deliver_until(self, met: Callable[[], bool], timeout: float) -> None:
        """Notes the bound, and waits."""
        self.waits.append(timeout)
        super().deliver_until(met, timeout)


def test_a_store_that_hangs_is_waited_for_once(store: RunningStore) -> None:
    """Requests to a hung store cost one ``scheduling_wait`` together, and none once it is known."""
    access = StoreAccess(
        str(store.runtime_dir), IDENTITY, LAYOUT, name="vllm tiny", call_timeout=0.5
    )
    assert wait_until(lambda: access.usable and access.memory.failure is None)
    answers, settings = NotedAnswers(), PlannerSettings(page_tokens=PAGE, lookup_timeout=60.0)
    planner = TransferPlanner(
        settings,
        StoreWork(access, PAGE, 60.0),
        answers,
        usable=lambda: access.usable,
        blocks_of=lambda name: [] if name else (),
    )

    def matched(*names: str) -> list[int | None]:
        # A step of other requests, after which scheduling may wait again.
        planner.plan(StepPlan("engine"), {"another": 1}, ())
        for name in names:
            planner.arrived(NaiveRequest(name, list(range(5000, 5016)), 16), KEY)
        return [planner.matched_tokens(name, 0) for name in names]

    store.suspend()
    try:
        # Unknown, or a miss on a machine so busy that the call timed out meanwhile.
        assert not any(matched(*"abcde"))
        assert not any(matched(*"fg"))
        assert answers.waits == [settings.scheduling_wait]
        assert wait_until(lambda: not access.usable)
        assert matched("h") == [0]
        assert answers.waits == [settings.scheduling_wait]
    finally:
        store.resume()
    assert wait_until(lambda: access.usable)
    matched("i")
    assert wait_until(lambda: planner.matched_tokens("i", 0) is not None)
    before, names = len(answers.waits), (f"later {number}" for number in count())
    # Requests wait again; one whose answer is there at once need not.
    assert wait_until(lambda: bool(matched(next(names))) and len(answers.waits) > before)
    assert answers.waits[before:] == [settings.scheduling_wait]
    planner.close()
    access.close()
