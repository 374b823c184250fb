"""Lookups of one request in a store that answers when told."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from kvstore.v1 import types_pb2
from kvstore_client import GroupWindow, Match
from kvstore_client.pages.match import NOTHING_LOADED, LoadedPages
from kvstore_client.values.page_runs import Pages
from kvstore_vllm.engine.connector_settings import PlannerSettings
from kvstore_vllm.identity.request_key import RequestKey
from kvstore_vllm.offload.matched_pages import MatchedPages
from kvstore_vllm.offload.store_path import Stored
from kvstore_vllm.scheduler.prefetches import Prefetches
from kvstore_vllm.scheduler.prefix_lookups import PrefixLookups
from naive.news import NotedNews
from wire.told_answers import ToldAnswers

PAGE, TIMEOUT, WAIT = 4, 0.25, 0.003


class Found(Match):
    """A match of the first slots of extent 7, which counts its releases."""

    def __init__(self, page_count: int, loaded: LoadedPages = NOTHING_LOADED) -> None:
        runs = [types_pb2.PageRun(extent_id=7, slot_indexes=range(page_count))]
        pages, tokens = Pages(runs), page_count * PAGE
        super().__init__(pages=pages, token_count=tokens, loaded=loaded)
        self.releases = 0

    def release(self) -> None:
        """Counts it."""
        self.releases += 1


@dataclass
class Asked:
    """The fields of vLLM's ``Request`` that are read."""

    num_tokens: int = 6 * PAGE
    request_id: str = "a request"
    num_prompt_tokens: int = 6 * PAGE
    num_computed_tokens: int = 0
    num_in_flight_tokens: int = 0
    all_token_ids: Sequence[int] = tuple(range(6 * PAGE))


@dataclass
class NaiveLookups:
    """Lookups, the pages that they matched, and a clock that tests move."""

    match: Match = field(default_factory=lambda: Found(4))
    counts: "Counter[str]" = field(default_factory=Counter)
    answers: ToldAnswers = field(default_factory=ToldAnswers)
    usable: bool = True
    joining: bool = False
    now: float = 0.0
    prefetches: Prefetches | None = None
    groups: Sequence[GroupWindow] = ()
    news: NotedNews = field(default_factory=NotedNews)

    def __post_init__(self) -> None:
        settings = PlannerSettings(page_tokens=PAGE, lookup_timeout=TIMEOUT, scheduling_wait=WAIT)
        work: Any = self
        self.lookups = PrefixLookups(
            settings,
            work,
            self.answers,
            self.counts,
            usable=lambda: self.usable,
            joining=lambda: self.joining,
            news=self.news,
            groups=self.groups,
            clock=lambda: self.now,
        )
        self.lookups.prefetches = self.prefetches
        self.matched = MatchedPages(self.lookups, clock=lambda: self.now)
        self.tracked = self.new_request()

    def new_request(self) -> Stored:
        """Returns a request of six pages."""
        return Stored(Asked(), RequestKey())

    def look_up(self, *_: object) -> Match:
        """Answers with the match that the test set."""
        return self.match

    def found(self) -> bool:
        """Returns whether the answer is there."""
        return self.lookups.find(self.tracked) is not None

    @property
    def releases(self) -> int:
        """The number of times that the match was released."""
        assert isinstance(self.match, Found)
        return self.match.releases
