"""Requests whose lookups wait for a thread are prefetched, and others are not."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from kvstore_vllm.identity.request_key import RequestKey
from kvstore_vllm.scheduler.prefetches import MOST_UNDER_WAY, Prefetches
from naive.lookups import NaiveLookups
from naive.runs import PAGE, PROMPT, engine
from wire.told_answers import ToldAnswers

THREADS = 2
LOADING = 12
KEY = RequestKey()


@dataclass
class Sent:
    """A store that loads twelve tokens of each prompt, and a slower tier that tests take away."""

    offered: bool = True
    tokens: list[tuple[int, ...]] = field(default_factory=list)
    answers: ToldAnswers = field(default_factory=ToldAnswers)
    counts: "Counter[str]" = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.prefetches = Prefetches(
            self,
            self.answers,
            self.counts,
            lookup_threads=THREADS,
            offered=lambda: self.offered,
        )

    def prefetch(self, key: RequestKey, token_ids: Sequence[int]) -> int:
        """Notes the prompt."""
        assert key == KEY
        self.tokens.append(tuple(token_ids))
        return LOADING


def test_only_a_lookup_that_waits_is_prefetched() -> None:
    """A lookup that has a thread loads the pages itself."""
    sent = Sent()
    for under_way in range(THREADS + 2):
        sent.prefetches.before_lookup(KEY, [under_way], under_way)
    sent.prefetches.close()
    assert sent.tokens == [(THREADS,), (THREADS + 1,)]
    assert sent.counts == {"prefetched_tokens": 2 * LOADING}


def test_without_slower_tiers_nothing_is_sent() -> None:
    """The store is not asked at all."""
    sent = Sent(offered=False)
    sent.prefetches.before_lookup(KEY, [1], THREADS)
    assert sent.answers.under_way == 0


def test_prefetches_under_way_are_bounded() -> None:
    """More of them begin once earlier ones were answered."""
    sent = Sent()
    for number in range(MOST_UNDER_WAY + 5):
        sent.prefetches.before_lookup(KEY, [number], THREADS)
    assert sent.answers.under_way == MOST_UNDER_WAY
    sent.answers.answer()
    sent.prefetches.before_lookup(KEY, [99], THREADS)
    assert sent.answers.under_way == MOST_UNDER_WAY
    sent.prefetches.close()
    assert len(sent.tokens) == MOST_UNDER_WAY + 1


def test_a_burst_of_requests_is_prefetched_behind_the_first() -> None:
    """Each request beyond the lookups' threads is prefetched once, with its whole pages."""
    sent = Sent()
    world = NaiveLookups(prefetches=sent.prefetches)
    burst = [world.new_request() for _ in range(THREADS + 3)]
    for each in burst:
        world.lookups.begin(each)
    assert sent.answers.under_way == 3
    for each in burst:
        world.lookups.find(each)
    assert sent.answers.under_way == 3


def test_a_planner_prefetches_what_arrives_behind_others() -> None:
    """Each prompt is sent in whole pages, and the planner ends with its prefetches."""
    sent, world = Sent(), engine()
    world.planner.prefetch_with(sent.prefetches)
    prompts = [[number, *PROMPT] for number in range(THREADS + 2)]
    for number, prompt in enumerate(prompts):
        world.arrive(str(number), prompt)
    assert sent.answers.under_way == 2
    world.planner.close()
    assert sent.answers.under_way == 0
    whole = len(prompts[0]) // PAGE * PAGE
    assert sent.tokens == [tuple(each[:whole]) for each in prompts[THREADS:]]
