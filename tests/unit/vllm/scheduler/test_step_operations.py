"""The store's operations of a step: one call for all requests, each with an outcome of its own."""

from collections.abc import Sequence
from typing import Any

from kvstore_client import Acquired, Match
from kvstore_vllm.identity.request_key import RequestKey
from kvstore_vllm.scheduler.step_operations import (
    AcquirePages,
    InsertPages,
    Outcomes,
    ReleasePages,
    StepOperations,
    StoreOperation,
)
from naive.runs import PROMPT, engine
from wire.told_answers import ToldAnswers

PLAIN, SALTED = RequestKey(), RequestKey(plain_salt=b"a user's own, thirty-two bytes..")


class Released(Match):
    """A match that counts its releases."""

    count = 0

    def release(self) -> None:
        """Counts."""
        self.count += 1


class Work:
    """Notes the calls, and fails each as a thread does whose work raised."""

    def __init__(self, *, fails: bool = False) -> None:
        self.calls: list[Sequence[StoreOperation]] = []
        self._fails = fails

    def run_step(self, operations: Sequence[StoreOperation]) -> Outcomes:
        """Succeeds, or returns what is delivered for work that raised."""
        self.calls.append(operations)
        if self._fails:
            nothing: Any = None
            return nothing
        return [_outcome(each) for each in operations]


def _outcome(operation: StoreOperation) -> Acquired | bool | None:
    if isinstance(operation, AcquirePages):
        return Acquired(Match())
    return True if isinstance(operation, InsertPages) else None


def _added(operations: StepOperations, key: RequestKey) -> tuple[list[object], Released]:
    """Adds one of each kind; returns their outcomes, and what was released."""
    found: list[object] = []
    held = Released()
    operations.add(AcquirePages(key, [1, 2], yielding=True, done=found.append))
    operations.add(InsertPages(key, [1, 2], Acquired(Match()), 0, 1, None, found.append))
    operations.add(ReleasePages(key, held))
    return found, held


def test_operations_of_a_namespace_are_one_call() -> None:
    """They are sent together, in their order; nothing is sent without any."""
    answers, work = ToldAnswers(), Work()
    operations = StepOperations(work, answers)
    operations.send()
    assert not answers.asked
    plain, _ = _added(operations, PLAIN)
    salted, _ = _added(operations, SALTED)
    again, _ = _added(operations, PLAIN)
    assert operations.are_waiting
    operations.send()
    assert not operations.are_waiting
    answers.answer_all()
    assert [len(each) for each in work.calls] == [6, 3]
    assert {each.key for each in work.calls[0]} == {PLAIN}
    for found in (plain, salted, again):
        acquired, inserted = found
        assert isinstance(acquired, Acquired)
        assert inserted is True


def test_a_call_that_broke_off_fails_all_its_operations() -> None:
    """Each request gets its own failure, and what is released is given back one by one."""
    answers = ToldAnswers()
    operations = StepOperations(Work(fails=True), answers)
    found, held = _added(operations, PLAIN)
    operations.send()
    answers.answer_all()
    assert found == [None, False]
    assert held.count == 1


def test_the_end_sends_what_is_left() -> None:
    """Operations that answers lead to are sent too."""
    answers, work = ToldAnswers(), Work()
    operations = StepOperations(work, answers)
    held = Released()

    def done(_: object) -> None:
        operations.add(ReleasePages(PLAIN, held))

    operations.add(AcquirePages(PLAIN, [1, 2], yielding=True, done=done))
    operations.close()
    assert [len(each) for each in work.calls] == [1, 1]
    assert not operations.are_waiting


def test_an_engine_makes_one_call_a_step_however_many_requests_it_has() -> None:
    """Eight prompts that begin, are saved and end together need as many calls as one does."""
    calls = []
    for count in (1, 8):
        world = engine(blocks=200, chunk=4)
        for number in range(count):
            world.arrive(f"r{number}", [each + 100 * number for each in PROMPT])
        steps = 0
        while steps < 8:
            world.answers.answer_all()
            world.step()
            steps += 1
        assert len(world.store.index) == 2 * count
        calls.append(world.store.steps)
    assert calls[0] == calls[1]
    assert calls[0] <= 4
