"""Schedules requests: which tokens each step computes, and who gives way when slots are short.

Pure: no torch, no store, no clock. It asks a :class:`Supply` for pages, and times are arguments. As
in vLLM's scheduler, a step first continues the running requests before it admits others, and the
youngest gives way. As in SGLang's, the request with most tokens cached is admitted first.
"""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from typing import Final, NamedTuple, Protocol


class Part(NamedTuple):
    """The next ``token_count`` tokens of a request, to be computed in this step."""

    number: int
    token_count: int


class Admitted(NamedTuple):
    """A request has pages; they hold the first ``computed`` of its ``token_count`` tokens."""

    token_count: int
    computed: int


class NotAdmitted(Enum):
    """Why a request does not run: too few pages for its tokens now, or it has ended."""

    NO_ROOM = 1
    ENDED = 2


class Elsewhere(NamedTuple):
    """A request holds nothing, because another worker computes the tokens that it lacks.

    Requests of one ``prefix`` lack the same tokens. A retry makes sense after ``look_after``
    seconds. The request waits ``at_most`` seconds from its first try, then computes the tokens
    itself. If ``one_is_enough``, one request does so for the whole prefix, and the wait of the
    others begins again.
    """

    prefix: Hashable
    look_after: float
    at_most: float
    one_is_enough: bool = True


class Supply(Protocol):
    """Acquires and releases the pages of requests, by their numbers."""

    def peek(self, number: int) -> int:
        """Returns how many of a waiting request's tokens are cached; holds nothing."""
        ...

    def prefetch(self, number: int) -> None:
        """Begins to load into memory what slower tiers have of a waiting request; holds nothing."""
        ...

    def admit(self, number: int, *, may_yield: bool) -> Admitted | Elsewhere | NotAdmitted:
        """Matches a waiting request and acquires pages for all its tokens, or holds nothing.

        The answer is ``Elsewhere`` only with ``may_yield``.
        """
        ...

    def grow(self, wanted: Sequence[tuple[int, int]]) -> bool:
        """Acquires pages for each ``(number, tokens)``; returns whether all requests have theirs.

        The pages are the store's. A request that has private pages already gets more private pages.
        """
        ...

    def grow_private(self, number: int, token_count: int) -> bool:
        """Acquires private pages for what a request lacks, all or none; returns which."""
        ...

    def give_way(self, number: int) -> None:
        """Publishes a request's complete pages, then releases all that it holds."""
        ...


# Of this many admitted requests, at least one is the oldest that waits.
PATIENCE: Final = 8
# Each peek is a call to the store: about 0.3 ms.
PEEKS_A_STEP: Final = 4
# Each prefetch is a call to the store, of about the same time.
PREFETCHES_A_STEP: Final = 4
# The most waiting requests whose pages were loaded ahead. More of them would only use up the free
# slots: the store evicts those pages before their requests run.
PREFETCHED_AHEAD: Final = 16
# A peek is outdated after this time: other workers publish, and the store evicts.
PEEK_SECONDS: Final = 2.0


@dataclass(slots=True)
class Waiting:
    """A request that holds nothing: its ids, and how many of them are cached.

    ``resumes`` is whether it ran before. ``cached`` is the result of the last peek.
    ``prefetched`` is whether the supply was asked to load its pages ahead.
    """

    number: int
    token_count: int
    resumes: bool = False
    may_yield: bool = True
    cached: int = 0
    prefetched: bool = False
    _peeked_at: float | None = None
    _peeked_version: int = 0
    # If another worker computes what it lacks: when to try again, and since when it waits.
    prefix: Hashable | None = None
    look_at: float = 0.0
    one_is_enough: bool = False
    _waits_since: float = 0.0

    @property
    def lacking(self) -> int:
        """Tokens to compute, as far as is known; at least one."""
        return max(self.token_count - self.cached, 1)

    def is_stale(self, version: int, now: float) -> bool:
        """Returns whether another peek may give another result."""
        if self._peeked_at is None:
            return True
        return self._peeked_version != version or now - self._peeked_at >= PEEK_SECONDS

    def peeked(self, cached: int, version: int, now: float) -> None:
        """Stores the result of a peek."""
        self.cached, self._peeked_version, self._peeked_at = cached, version, now

    @property
    def peek_order(self) -> tuple[float, int]:
        """Sort key: requests that were never peeked first, then the longest ago."""
        peeked_at = float("-inf") if self._peeked_at is None else self._peeked_at
        return peeked_at, self.number

    def put_off(self, found: Elsewhere, now: float) -> None:
        """Delays the next try. Once it has waited too long, it waits for nobody any more."""
        if self.prefix is None:
            self._waits_since = now
        self.prefix, self.one_is_enough = found.prefix, found.one_is_enough
        gives_up_at = self._waits_since + found.at_most
        self.may_yield = now < gives_up_at
        self.look_at = min(now + found.look_after, gives_up_at) if self.may_yield else now

    def wait_anew(self, now: float) -> None:
        """Begins the wait again: another request now computes the prefix."""
        self._waits_since = now


class WaitingQueue:
    """The requests that hold nothing.

    Requests that ran before go first, the oldest of them first of all. Next is the request with the
    most cached tokens: an eviction could remove those, and they would have to be computed again. A
    share of the prompt would rate ten tokens like ten thousand. Of every :data:`PATIENCE` requests
    admitted this way, one is the oldest, whatever it has cached. So no request starves, and a long
    queue does not fall back to the order of arrival. One engine thread uses it.
    """

    def __init__(self) -> None:
        """Starts empty."""
        self._jobs: dict[int, Waiting] = {}
        self._passes = 0
        # Grows with each publication of this engine.
        self._version = 0

    def __len__(self) -> int:
        """Counts the waiting requests."""
        return len(self._jobs)

    def add(self, number: int, token_count: int, *, resumes: bool = False) -> None:
        """Adds a request."""
        self._jobs[number] = Waiting(number, token_count, resumes)

    def remove(self, number: int) -> None:
        """Removes a request; does nothing if it does not wait."""
        self._jobs.pop(number, None)

    def published(self) -> None:
        """Notes that this engine published pages, which waiting requests may lack."""
        self._version += 1

    def look_again(self) -> None:
        """Ends all delays: a prefill of this engine may be done or given up."""
        for job in self._jobs.values():
            job.look_at = 0.0

    def next_look(self) -> float | None:
        """Returns when the first delayed request may be tried again; None if none is delayed."""
        return min((job.look_at for job in self._lookers()), default=None)

    def peek(self, supply: Supply, now: float) -> None:
        """Asks the supply what is cached of a few requests whose result is missing or stale."""
        jobs = [job for job in self._ready(now) if not job.resumes]
        stale = [job for job in jobs if job.is_stale(self._version, now)]
        for job in sorted(stale, key=lambda each: each.peek_order)[:PEEKS_A_STEP]:
            job.peeked(supply.peek(job.number), self._version, now)

    def prefetch(self, supply: Supply) -> None:
        """Asks the supply to load the pages of a few requests that wait, of each once.

        The oldest come first. Requests that ran before run next, and a request that waits for
        another worker's prefill needs pages that nobody has computed.
        """
        ahead = sum(job.prefetched for job in self._jobs.values())
        room = min(PREFETCHES_A_STEP, PREFETCHED_AHEAD - ahead)
        jobs = (
            job
            for job in self._jobs.values()
            if not (job.prefetched or job.resumes) and job.prefix is None
        )
        for job in islice(jobs, max(room, 0)):
            job.prefetched = True
            supply.prefetch(job.number)

    def total_lacking(self, now: float) -> int:
        """Counts the tokens that the requests lack that can be admitted now."""
        return sum(job.lacking for job in self._ready(now))

    def ready_count(self, now: float) -> int:
        """Counts the requests that can be admitted now."""
        return len(self._ready(now))

    def next(self, now: float, most_lacking: int | None) -> Waiting | None:
        """Returns the request to admit now, lacking at most ``most_lacking`` tokens, or None."""
        ready = self._ready(now)
        if not ready:
            return None
        resumed = [job for job in ready if job.resumes]
        if resumed or self._passes >= PATIENCE:
            fits = [min(resumed or ready, key=lambda job: job.number)]
        else:
            fits = ready
        if most_lacking is not None:
            fits = [job for job in fits if job.lacking <= most_lacking]
        return min(fits, key=lambda job: (-job.cached, job.number), default=None)

    def admitted(self, job: Waiting, now: float) -> None:
        """Removes an admitted request; does nothing if it was removed before."""
        if self._jobs.get(job.number) is not job:
            return
        if not job.resumes:
            oldest = min(each.number for each in [*self._ready(now), job])
            self._passes = 0 if job.number == oldest else self._passes + 1
        del self._jobs[job.number]

    def takes_over(self, job: Waiting, now: float) -> None:
        """Notes that a request runs. If it gave up its wait, others wait for it from now on."""
        if job.may_yield or not job.one_is_enough:
            return
        for other in self._jobs.values():
            if other.prefix == job.prefix:
                other.wait_anew(now)

    def _ready(self, now: float) -> list[Waiting]:
        """Returns the requests that can be admitted; of those with one prefix, one tries."""
        free = [job for job in self._jobs.values() if job.prefix is None]
        return free + [job for job in self._lookers() if job.look_at <= now]

    def _lookers(self) -> list[Waiting]:
        """Returns the oldest request of each prefix that another worker computes."""
        first: dict[Hashable, Waiting] = {}
        for job in self._jobs.values():
            if job.prefix is not None:
                other = first.setdefault(job.prefix, job)
                if job.number < other.number:
                    first[job.prefix] = job
        return list(first.values())


MAX_STEP_TOKENS: Final = 512
MAX_RUNNING: Final = 64
# The most requests of one step that are found to wait for another worker.
LOOKS_A_STEP: Final = 8
# If slots were short, others on the same store may have released some by then.
REOPEN_SECONDS: Final = 0.1


@dataclass(slots=True)
class _Job:
    """A running request: how many ids it has, and how many of them are computed."""

    number: int
    token_count: int
    computed: int

    @property
    def missing(self) -> int:
        return self.token_count - self.computed


class Scheduler:
    """Keeps the waiting and the running requests, and plans one step after the other.

    Requests have growing numbers: the lower number is the older request. The oldest running request
    always gets its pages, since each younger one gives way to it. A request that gave way goes
    before all that never ran. So there is always progress, whatever other engines hold of the same
    store: no request waits for slots while it holds some. One engine thread uses it.
    """

    def __init__(
        self, *, max_step_tokens: int = MAX_STEP_TOKENS, max_running: int = MAX_RUNNING
    ) -> None:
        """Raises ``ValueError`` for a bound below 1."""
        if max_step_tokens < 1 or max_running < 1:
            raise ValueError(f"bounds of a step: {max_step_tokens} tokens, {max_running} requests")
        self._max_step_tokens = max_step_tokens
        self.max_running = max_running
        self._queue = WaitingQueue()
        self._running: dict[int, _Job] = {}
        self._closed_until = 0.0
        self.preemptions = 0

    @property
    def waiting_count(self) -> int:
        """Requests that hold nothing, or nothing any more."""
        return len(self._queue)

    @property
    def running_count(self) -> int:
        """Requests that have pages."""
        return len(self._running)

    @property
    def next_look(self) -> float | None:
        """When a step can do something again, if all wait for another's prefill; else None."""
        return None if self._running else self._queue.next_look()

    def add(self, number: int, token_count: int) -> None:
        """Adds a request of ``token_count`` ids; its number is above all before it."""
        self._queue.add(number, token_count)

    def remove(self, number: int) -> None:
        """Removes a request, whatever its state; does nothing the second time."""
        self._queue.remove(number)
        if self._running.pop(number, None) is not None:
            self._closed_until = 0.0
            self.published(prompt=True)

    def computed(self, part: Part) -> None:
        """Notes that a part was computed."""
        self._running[part.number].computed += part.token_count

    def extended(self, number: int) -> None:
        """Notes that a running request has one more id to compute."""
        self._running[number].token_count += 1

    def published(self, *, prompt: bool) -> None:
        """Notes that this engine published pages; with ``prompt`` the last of a prompt's."""
        self._queue.published()
        if prompt:
            self._queue.look_again()

    def restart(self, number: int) -> None:
        """Moves a running request that released its pages to the front of the queue."""
        job = self._running.pop(number, None)
        if job is not None:  # it has not failed meanwhile
            self._queue.add(number, job.token_count, resumes=True)
            self._queue.look_again()

    def plan(self, supply: Supply, now: float) -> list[Part]:
        """Admits requests that have room, and returns the parts of the next step, with their pages.

        First the next token of each request that decodes, then the missing parts of prompts, within
        the step's tokens. Returns no part if nothing can be done at ``now``, in seconds.
        """
        if not self._running or now >= self._closed_until:
            self._admit(supply, now)
        if self._running:
            # They load while the step computes.
            self._queue.prefetch(supply)
        return self._provide(list(self._parts()), supply, now)

    def _admit(self, supply: Supply, now: float) -> None:
        looks = LOOKS_A_STEP
        if len(self._running) < self.max_running and self._order_matters(now):
            self._queue.peek(supply, now)
        while looks and len(self._running) < self.max_running:
            job = self._next(now)
            if job is None:
                return
            found = supply.admit(job.number, may_yield=job.may_yield)
            if found is NotAdmitted.NO_ROOM:
                self._closed_until = now + REOPEN_SECONDS
                return
            if isinstance(found, Elsewhere):
                looks -= 1
                job.put_off(found, now)
                continue
            self._queue.admitted(job, now)
            if isinstance(found, Admitted):
                self._running[job.number] = _Job(job.number, *found)
                self._queue.takes_over(job, now)

    def _order_matters(self, now: float) -> bool:
        """Returns whether the cached tokens decide which requests are admitted now."""
        count, room = self._queue.ready_count(now), self._room()
        if count <= 1 or room <= 0:
            return count > 0 >= room
        places = self.max_running - len(self._running)
        return count > places or self._queue.total_lacking(now) > room

    def _next(self, now: float) -> Waiting | None:
        if self._room() > 0:
            return self._queue.next(now, None)
        room = self._room_beside()
        return self._queue.next(now, room) if room > 0 else None

    def _room(self) -> int:
        """Counts the tokens of the next step that no running request needs."""
        return self._max_step_tokens - sum(job.missing for job in self._running.values())

    def _room_beside(self) -> int:
        """Counts the tokens of a step for short prompts beside a long one."""
        decodes = [job for job in self._running.values() if job.missing == 1]
        beside = (self._max_step_tokens - len(decodes)) // 2
        prompts = [job for job in self._running.values() if job.missing > 1]
        return beside - sum(job.missing for job in _short(prompts, beside))

    def _parts(self) -> Iterator[Part]:
        """Chooses what is computed: decodes, then short rests of prompts, then the oldest prompts.

        A mostly cached prompt does not wait for a long one, which has half the step.
        """
        jobs = [self._running[number] for number in sorted(self._running)]
        decodes = [job for job in jobs if job.missing == 1]
        yield from (Part(job.number, 1) for job in decodes)
        # However many requests decode, a prompt makes progress.
        left = max(self._max_step_tokens - len(decodes), 1)
        prompts = [job for job in jobs if job.missing > 1]
        short = _short(prompts, left // 2)
        for job in short + [job for job in prompts if job not in short]:
            count = min(job.missing, left)
            if count:
                yield Part(job.number, count)
            left -= count

    def _provide(self, parts: list[Part], supply: Supply, now: float) -> list[Part]:
        """Acquires pages for all parts; if there are too few, the youngest requests give way."""
        if not parts or supply.grow([self._wanted(part) for part in parts]):
            return parts
        for part in sorted(parts):
            while part.number in self._running and not self._has_pages(part, supply):
                self._preempt(max(self._running), supply, now)
        return [part for part in parts if part.number in self._running]

    def _has_pages(self, part: Part, supply: Supply) -> bool:
        wanted = self._wanted(part)
        return supply.grow([wanted]) or supply.grow_private(*wanted)

    def _wanted(self, part: Part) -> tuple[int, int]:
        return part.number, self._running[part.number].computed + part.token_count

    def _preempt(self, number: int, supply: Supply, now: float) -> None:
        supply.give_way(number)
        self.restart(number)
        self.preemptions += 1
        self._closed_until = now + REOPEN_SECONDS


def _short(prompts: list[_Job], room: int) -> list[_Job]:
    """Chooses the shortest rests that fit together."""
    chosen = []
    for job in sorted(prompts, key=lambda job: job.missing):
        room -= job.missing
        if room < 0:
            break
        chosen.append(job)
    return chosen
