"""Slots for computed pages: vLLM asks again while they are under way, and not for long."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace

from kvstore_client import PageRef, ReuseHint
from kvstore_vllm.identity.request_key import RequestKey
from kvstore_vllm.offload.matched_pages import GroupPage
from kvstore_vllm.offload.publication import PagesToPublish, PublishedPages
from kvstore_vllm.offload.reserve import Reserve, SpareBatch
from kvstore_vllm.offload.store_path import LONGEST_DEFERRAL, Stored, StorePath
from naive.news import NotedNews
from wire.told_answers import ToldAnswers

PAGE, PAGES, MOST = 4, 200, 16
WAIT = 0.002


@dataclass
class Slots:
    """A batch of some slots of one extent."""

    count: int
    usable: bool = True

    def pages(self) -> list[tuple[int, PageRef]]:
        """Returns as many places."""
        return [(offset, PageRef(7, offset)) for offset in range(self.count)]

    def abort(self) -> None:
        """Does nothing."""


@dataclass
class World:
    """The path of one request, a reserve without slots, and a clock that only tests move."""

    answers: ToldAnswers = field(default_factory=ToldAnswers)
    now: float = 0.0
    prompt_pages: int = PAGES
    hints: list[ReuseHint | None] = field(default_factory=list)
    news: NotedNews = field(default_factory=NotedNews)
    calls: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.reserve = Reserve(self._fill, self.answers, MOST, WAIT, self._ticking)
        self.path = StorePath(
            PAGE,
            self,
            self.answers,
            Counter(),
            usable=lambda: True,
            reserve_of=lambda _key: self.reserve,
            news=self.news,
            ended=lambda _tracked: None,
            clock=lambda: self.now,
        )
        tokens = list(range(PAGES * PAGE))
        request = SimpleNamespace(
            request_id="a",
            all_token_ids=tokens,
            num_prompt_tokens=self.prompt_pages * PAGE,
            num_tokens=len(tokens),
        )
        self.tracked = Stored(request, RequestKey())

    def prepare(self, first: int, count: int) -> int | None:
        """Asks for slots of some pages; returns how many came, or None to ask again."""
        wanted = [(b"%d" % page, GroupPage(0, page)) for page in range(first, first + count)]
        found = self.path.prepare(self.tracked, wanted)
        return None if found is None else len(found)

    def publish(self, wanted: Sequence[PagesToPublish]) -> list[PublishedPages]:
        """Publishes all."""
        self.calls.append(len(wanted))
        self.hints += [each.hint for each in wanted]
        return [
            PublishedPages(
                len(each.token_ids) // PAGE,
                frozenset(page.spare for page in each.pages),
                len(each.pages),
            )
            for each in wanted
        ]

    def _fill(self, count: int) -> SpareBatch | None:
        return Slots(count)

    def _ticking(self) -> float:
        # Each look at the clock takes a while, so that waits end.
        self.now += 0.0001
        return self.now


def test_a_second_shortage_may_be_waited_for_as_the_first_was() -> None:
    """A request that runs for long is asked about again, however long ago slots lacked before."""
    world = World()
    assert world.prepare(0, MOST) is None
    world.answers.answer_all()
    assert world.prepare(0, MOST) == MOST
    world.now += 100 * LONGEST_DEFERRAL
    assert world.prepare(MOST, MOST) is None
    world.answers.answer_all()
    assert world.prepare(MOST, MOST) == MOST


def test_slots_that_do_not_come_are_not_waited_for_long() -> None:
    """After a while the request's other pages are given up, and vLLM does not ask again."""
    world = World()
    assert world.prepare(0, 2) is None
    world.now += 2 * LONGEST_DEFERRAL
    assert world.prepare(0, 2) == 0
    world.answers.answer_all()
    assert world.prepare(2, 2) == 0


def test_only_pages_of_an_ended_session_are_given_up() -> None:
    """A page that waits for others keeps its slot, until the slot's session ended."""
    world = World(prompt_pages=0)
    assert world.prepare(0, 1) is None
    world.answers.answer_all()
    assert world.prepare(0, 1) == 1
    world.path.copied(world.tracked, [b"0"], failed=False)
    world.path.drop_ended(world.tracked)
    [written] = world.tracked.written.values()
    assert world.tracked.may_store
    slots = written.spare.batch.slots
    assert isinstance(slots, Slots)
    slots.usable = False
    assert world.reserve.drop_ended()
    world.path.drop_ended(world.tracked)
    assert not world.tracked.written
    assert not world.tracked.may_store
    assert world.reserve.is_empty


def test_a_hint_goes_with_the_pages_of_its_request() -> None:
    """Each publication of the request has it."""
    world = World()
    hint = world.tracked.hint = ReuseHint("one_shot")
    assert world.prepare(0, 1) is None
    world.answers.answer_all()
    assert world.prepare(0, 1) == 1
    world.path.copied(world.tracked, [b"0"], failed=False)
    world.path.send()
    world.answers.answer_all()
    assert world.hints == [hint]


def test_pages_that_a_reset_overtook_are_not_told() -> None:
    """Their publication ends in the namespace before the reset, where nobody looks."""
    for dropped in (False, True):
        world = World()
        assert world.prepare(0, 1) is None
        world.answers.answer_all()
        assert world.prepare(0, 1) == 1
        world.path.copied(world.tracked, [b"0"], failed=False)
        assert world.tracked.publishing
        world.path.send()
        if dropped:
            assert world.path.drop(world.tracked) == []
        world.answers.answer_all()
        assert world.news.had == ([] if dropped else [("a", 1)])
        assert not world.tracked.publishing


def test_pages_of_all_requests_of_a_step_are_one_call() -> None:
    """They are published together; another namespace's are a call of their own."""
    world = World()
    assert world.prepare(0, 1) is None
    world.answers.answer_all()
    others = [Stored(world.tracked.request, RequestKey()) for _ in range(3)]
    salted = Stored(world.tracked.request, RequestKey(plain_salt=b"another"))
    for number, each in enumerate([world.tracked, *others, salted]):
        key = b"%d" % number
        assert world.path.prepare(each, [(key, GroupPage(0, 0))])
        world.path.copied(each, [key], failed=False)
    assert world.path.has_waiting
    world.path.send()
    world.answers.answer_all()
    assert world.calls == [4, 1]
    assert world.news.had == [("a", 1)] * 5
    assert not world.path.has_waiting


def test_the_end_publishes_what_is_left() -> None:
    """Pages that wait for a step go to the store, and nothing waits afterwards."""
    world = World()
    assert world.prepare(0, 1) is None
    world.answers.answer_all()
    assert world.prepare(0, 1) == 1
    world.path.copied(world.tracked, [b"0"], failed=False)
    world.path.close()
    assert world.news.had == [("a", 1)]
    assert not world.path.has_waiting
