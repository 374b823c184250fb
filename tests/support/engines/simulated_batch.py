"""Engines without a model: a scheduler each, and pages that are only counted."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from inference_worker.engine.scheduler import Admitted, Elsewhere, NotAdmitted, Part, Scheduler

PAGE_TOKENS = 4
# Of the longest sequence.
LONGEST = 40
STEP_SECONDS = 0.01


def pages_for(token_count: int) -> int:
    """Counts the pages of so many tokens."""
    return -(-token_count // PAGE_TOKENS)


class CountedStore:
    """Slots that several engines share, and what is cached of requests that gave way."""

    def __init__(self, slots: int) -> None:
        self.slots = self.unused = slots
        self.cached: dict[int, int] = {}

    def take(self, count: int) -> bool:
        """Reserves slots, all or none; what is cached goes first."""
        while self.unused < count and self.cached:
            oldest = next(iter(self.cached))
            self.unused += self.cached.pop(oldest)
        if self.unused < count:
            return False
        self.unused -= count
        return True

    def keep(self, number: int, pages: int, unused: int) -> None:
        """Takes slots back: some with pages that stay cached."""
        self.unused += unused
        if pages:
            self.unused += self.cached.pop(number, 0)
            self.cached[number] = pages


@dataclass
class Prompt:
    """A request: its sizes, what is cached of it, and how long others compute what it lacks."""

    token_count: int
    max_tokens: int
    match: int = 0
    looks: int = 0
    prefix: str = "other"
    said: int = 0

    @property
    def tokens_now(self) -> int:
        """Tokens of the prompt and of what was said."""
        return self.token_count + self.said


@dataclass
class Held:
    """The pages of one request."""

    matched: int
    stored: int
    private: int = 0

    @property
    def pages(self) -> int:
        """All of them."""
        return self.matched + self.stored + self.private


@dataclass
class CountedEngine:
    """A scheduler and its supply; numbers are unique over all engines of a store."""

    store: CountedStore
    scheduler: Scheduler
    private_pages: int = pages_for(LONGEST)
    worth: float = 0.05
    one_is_enough: bool = True
    prompts: dict[int, Prompt] = field(default_factory=dict)
    held: dict[int, Held] = field(default_factory=dict)
    computed: dict[int, int] = field(default_factory=dict)
    finished: list[int] = field(default_factory=list)
    admissions: list[int] = field(default_factory=list)
    peeks: list[int] = field(default_factory=list)
    prefetches: list[int] = field(default_factory=list)
    looks: list[int] = field(default_factory=list)

    def add(self, number: int, prompt: Prompt) -> None:
        """Queues a request."""
        self.prompts[number] = prompt
        self.scheduler.add(number, prompt.token_count)

    # What the scheduler asks.

    def peek(self, number: int) -> int:
        """Tell the match."""
        self.peeks.append(number)
        return self.prompts[number].match

    def prefetch(self, number: int) -> None:
        """Notes it."""
        assert number in self.prompts
        assert number not in self.held
        self.prefetches.append(number)

    def admit(self, number: int, *, may_yield: bool) -> Admitted | Elsewhere | NotAdmitted:
        """Takes what a request lacks: of the store's by halves, and private ones for the rest."""
        assert number not in self.held
        prompt = self.prompts[number]
        if may_yield and prompt.looks:
            prompt.looks -= 1
            self.looks.append(number)
            times = self.worth / 20, 3 * self.worth
            return Elsewhere(prompt.prefix, *times, one_is_enough=self.one_is_enough)
        # What the match found is pinned before anything is evicted.
        own = self.store.cached.pop(number, 0)
        matched = 0 if own else min(prompt.match, prompt.tokens_now - 1) // PAGE_TOKENS
        missing = pages_for(prompt.tokens_now) - matched - own
        stored = missing
        while stored and not self.store.take(stored):
            stored //= 2
        if missing - stored > self.unused_private:
            self.store.keep(number, own, stored)
            assert self.held, "one request alone always has room"
            return NotAdmitted.NO_ROOM
        self.held[number] = Held(matched, own + stored, missing - stored)
        self.computed[number] = min((matched + own) * PAGE_TOKENS, prompt.tokens_now - 1)
        self.admissions.append(number)
        return Admitted(prompt.tokens_now, self.computed[number])

    def grow(self, wanted: Sequence[tuple[int, int]]) -> bool:
        """Takes slots for all, or none where the store has too few."""
        lacking = {number: self._lacking(number, tokens) for number, tokens in wanted}
        private = {number for number in lacking if self.held[number].private}
        if sum(lacking[number] for number in private) > self.unused_private:
            return False
        if not self.store.take(sum(lacking[number] for number in lacking.keys() - private)):
            return False
        for number, count in lacking.items():
            if number in private:
                self.held[number].private += count
            else:
                self.held[number].stored += count
        return True

    def grow_private(self, number: int, token_count: int) -> bool:
        """Takes private slots, all or none."""
        lacking = self._lacking(number, token_count)
        if lacking > self.unused_private:
            return False
        self.held[number].private += lacking
        return True

    def give_way(self, number: int) -> None:
        """Keeps the complete pages cached, and gives all back."""
        held = self.held.pop(number)
        complete = max(self.computed.pop(number) // PAGE_TOKENS - held.matched, 0)
        kept = min(complete, held.stored)
        self.store.keep(number, kept, held.stored - kept)

    # What an engine does with a plan.

    @property
    def unused_private(self) -> int:
        """Counts the private slots that nobody has."""
        return self.private_pages - sum(held.private for held in self.held.values())

    @property
    def has_work(self) -> bool:
        """True if some request has not ended."""
        return bool(self.prompts)

    def step(self, now: float) -> list[Part]:
        """Computes what is planned; each request that is through says a token."""
        parts = self.scheduler.plan(self, now)
        assert len({part.number for part in parts}) == len(parts)
        for part in parts:
            number, prompt = part.number, self.prompts[part.number]
            self.computed[number] += part.token_count
            assert part.token_count > 0
            assert self.computed[number] <= prompt.tokens_now
            assert self.held[number].pages >= pages_for(self.computed[number])
            self.scheduler.computed(part)
            if self.computed[number] == prompt.tokens_now:
                self._say(number)
        return parts

    def end(self, number: int) -> None:
        """Finishes or abort a request: all that it holds goes back."""
        held = self.held.pop(number, None)
        if held is not None:
            self.store.keep(number, 0, held.stored)
        self.prompts.pop(number)
        self.scheduler.remove(number)

    def _say(self, number: int) -> None:
        prompt = self.prompts[number]
        prompt.said += 1
        if prompt.said == prompt.max_tokens:
            self.finished.append(number)
            self.end(number)
        else:
            self.scheduler.extended(number)

    def _lacking(self, number: int, token_count: int) -> int:
        return max(pages_for(token_count) - self.held[number].pages, 0)
