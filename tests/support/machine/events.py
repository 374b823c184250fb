"""The cache machine's rules about who is told what happens."""

from collections import Counter
from collections.abc import Iterable

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant

from kvstore.core.pool.pages import EVENT_DIGEST_BYTES
from kvstore.core.values.events import (
    Event,
    EventWatch,
    LeaseEvent,
    LeaseStep,
    NamespaceEvent,
    NamespaceStep,
    PagesChange,
    PagesEvent,
)
from machine.keeping import KeepRules
from machine.state import COUNTS, OWNER


class EventRules(KeepRules):
    """Whoever adds up what is told comes to what is there."""

    def __init__(self) -> None:
        super().__init__()
        # How many pages stand at each place, which leases live, and what is open, as was told.
        self.told_pages: Counter[int] = Counter()
        self.told_leases: set[bytes] = set()
        self.told_namespaces: set[bytes] = set()
        self.every_digest: set[bytes] = set()
        self.watch = EventWatch(OWNER, b"", room=3, wake=lambda: None)
        self.steps = 0
        self.watched_steps = range(0)

    @initialize(first=st.sampled_from([0, 10, 20, 1000]))
    def watch_for_a_while(self, first: int) -> None:
        """Somebody watches some steps: only then are paths named."""
        self.watched_steps = range(first, first + 20)

    @invariant()
    def what_was_told_is_what_is_there(self) -> None:
        """Pages by their place in sequences, leases and namespaces; and paths by their digests."""
        self.steps += 1
        if self.steps == self.watched_steps.start + 1:
            self.cache.events.begin(self.watch, with_history=False)
        elif self.steps == self.watched_steps.stop:
            self.cache.events.end(self.watch)
        events = [each for each in self.cache.events.recent if OWNER.sees(each.tenant)]
        self.cache.events.recent.clear()
        width = self.model.width
        if self.namespace_id in self.cache.namespaces:
            now = self._event_digests(self.model.cached)
            fresh = self._event_digests(self.model.published)
            self._check_digests(events, now, fresh)
            self.every_digest |= now | fresh
        self.model.published.clear()
        for each in events:
            self._take(each)
        there = Counter(-(-len(prefix) // width) - 1 for prefix in self.model.cached)
        told = Counter({page: count for page, count in self.told_pages.items() if count})
        assert told == there, "what was told of pages is not what is there"
        assert self.told_leases == set(self.model.leases), "leases came or went untold"
        mine = {key for key, each in self.cache.namespaces.items() if OWNER.sees(each.tenant)}
        assert self.told_namespaces == mine, "namespaces came or went untold"

    def _take(self, event: Event) -> None:
        match event:
            case PagesEvent(change=PagesChange.INSERTED | PagesChange.REMOVED):
                added = 1 if event.change is PagesChange.INSERTED else -1
                assert event.page_count > 0
                for page in range(event.start_page, event.start_page + event.page_count):
                    self.told_pages[page] += added
            case LeaseEvent(step=LeaseStep.GRANTED):
                self.told_leases.add(event.lease_id)
            case LeaseEvent(step=LeaseStep.ENDED):
                self.told_leases.remove(event.lease_id)
            case NamespaceEvent(step=NamespaceStep.OPENED):
                self.told_namespaces.add(event.namespace_id)
            case NamespaceEvent():
                self.told_namespaces.remove(event.namespace_id)

    def _event_digests(self, prefixes: Iterable[bytes]) -> set[bytes]:
        """Returns how events name the last pages of prefixes."""
        return {self.digest_of(each)[:EVENT_DIGEST_BYTES] for each in prefixes}

    def _check_digests(self, events: list[Event], now: set[bytes], fresh: set[bytes]) -> None:
        """Checks that events name what came as what is there, and what went as what was.

        ``fresh`` is what was published in this step, some of which may be gone already. Such pages
        come as one run, under the last one's name, and may go one by one.
        """
        pages = [each for each in events if isinstance(each, PagesEvent) and each.path_digest]
        came = {each.path_digest for each in pages if each.change is PagesChange.INSERTED}
        went = {each.path_digest for each in pages if each.change is PagesChange.REMOVED}
        COUNTS["paths told"] += len(pages)
        if not went:
            assert came <= now, "a page is told by another path"
        assert came <= now | fresh, "a page that came and went is told by another path"
        assert went <= self.every_digest | now | fresh, "a page that went is told by another path"
