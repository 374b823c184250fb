"""Which tokens each step computes, and who gives way when slots are short.

Pure: no torch, no store, no clock. What it decides about pages it asks of a :class:`Supply`, and
times are handed in. As vLLM's scheduler does, a step goes on with those that run before it admits
others, and the latest gives way; as SGLang's, it admits those first of which most is cached.
"""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple, Protocol


class Part(NamedTuple):
    """The next ``token_count`` tokens of a request, to be computed in this step."""

    number: int
    token_count: int


class Admitted(NamedTuple):
    """A request has pages: of its ``token_count`` tokens the first ``computed`` are in them."""

    token_count: int
    computed: int


class NotAdmitted(Enum):
    """Why a request did not come to run: no pages for its tokens just now, or it has ended."""

    NO_ROOM = 1
    ENDED = 2


class Elsewhere(NamedTuple):
    """A request holds nothing, for what it lacks is being done elsewhere.

    Requests of one ``prefix`` lack the same. It is worth another look after ``look_after``
    seconds, and waits ``at_most`` seconds from its first look on; then it does without. Where
    ``one_is_enough`` it does so for all of the prefix: the others' wait begins anew.
    """

    prefix: Hashable
    look_after: float
    at_most: float
    one_is_enough: bool = True


class Supply(Protocol):
    """Gets and gives back the pages of requests, by their numbers."""

    def peek(self, number: int) -> int:
        """Returns how many of a waiting request's tokens are cached; holds nothing."""
        ...

    def admit(self, number: int, *, may_yield: bool) -> Admitted | Elsewhere | NotAdmitted:
        """Matches a waiting request and have pages for all its tokens; else hold nothing.

        Only with ``may_yield`` may the answer be that they are computed elsewhere.
        """
        ...

    def grow(self, wanted: Sequence[tuple[int, int]]) -> bool:
        """Have pages for each ``(number, tokens)``; tells whether all have theirs.

        The store's, and private ones for those alone that have private ones already.
        """
        ...

    def grow_private(self, number: int, token_count: int) -> bool:
        """Have pages of the engine's own for what a request lacks, all or none; tells which."""
        ...

    def give_way(self, number: int) -> None:
        """Puts what is complete of a request into the store, and gives back all that it holds."""
        ...


# Of so many that are admitted, at least one is the oldest that waits.
PATIENCE: Final = 8
# Each asks the store something: about 0.3 ms.
PEEKS_A_STEP: Final = 4
# Others publish too, and the store evicts.
PEEK_SECONDS: Final = 2.0


@dataclass(slots=True)
class Waiting:
    """A request that holds nothing: its ids, and what is known of where they are cached.

    ``resumes`` is whether it ran before. ``cached`` is what the last peek said.
    """

    number: int
    token_count: int
    resumes: bool = False
    may_yield: bool = True
    cached: int = 0
    _peeked_at: float | None = None
    _peeked_version: int = 0
    # Where what it lacks is done elsewhere: until when it is left alone, and since when it waits.
    prefix: Hashable | None = None
    look_at: float = 0.0
    one_is_enough: bool = False
    _waits_since: float = 0.0

    @property
    def lacking(self) -> int:
        """Tokens to be computed, as far as is known; one at least."""
        return max(self.token_count - self.cached, 1)

    def is_stale(self, version: int, now: float) -> bool:
        """Returns whether another peek may say something else."""
        if self._peeked_at is None:
            return True
        return self._peeked_version != version or now - self._peeked_at >= PEEK_SECONDS

    def peeked(self, cached: int, version: int, now: float) -> None:
        """Takes in what a peek said."""
        self.cached, self._peeked_version, self._peeked_at = cached, version, now

    @property
    def peek_order(self) -> tuple[float, int]:
        """Those that were never peeked first, then the longest ago."""
        peeked_at = float("-inf") if self._peeked_at is None else self._peeked_at
        return peeked_at, self.number

    def put_off(self, found: Elsewhere, now: float) -> None:
        """Leaves it alone for a while, or for good have it wait for nobody."""
        if self.prefix is None:
            self._waits_since = now
        self.prefix, self.one_is_enough = found.prefix, found.one_is_enough
        gives_up_at = self._waits_since + found.at_most
        self.may_yield = now < gives_up_at
        self.look_at = min(now + found.look_after, gives_up_at) if self.may_yield else now

    def wait_anew(self, now: float) -> None:
        """Begins the wait again: another one does now what it waits for."""
        self._waits_since = now


class WaitingQueue:
    """The requests that hold nothing.

    Those that ran before go first, the oldest of them first of all. Then the one of which most
    tokens are cached: those are what an eviction could take from it, and what must be computed
    again then; a share of the prompt would say as much for ten tokens as for ten thousand. Of
    every :data:`PATIENCE` so admitted one is the oldest, whatever it finds: nobody starves, and
    a long queue does not fall back to the order of arrival. One engine thread uses it.
    """

    def __init__(self) -> None:
        """Starts with none."""
        self._jobs: dict[int, Waiting] = {}
        self._passes = 0
        # Grows when something was published here.
        self._version = 0

    def __len__(self) -> int:
        """Counts them."""
        return len(self._jobs)

    def add(self, number: int, token_count: int, *, resumes: bool = False) -> None:
        """Have a request wait."""
        self._jobs[number] = Waiting(number, token_count, resumes)

    def remove(self, number: int) -> None:
        """Forgets a request; nothing where it does not wait."""
        self._jobs.pop(number, None)

    def published(self) -> None:
        """Takes in that this engine published pages, which those that wait may lack."""
        self._version += 1

    def look_again(self) -> None:
        """Takes in that what is waited for may be done, or given up: it was this engine's own."""
        for job in self._jobs.values():
            job.look_at = 0.0

    def next_look(self) -> float | None:
        """Tell when the first of those is looked at that wait for another's work; None: none."""
        return min((job.look_at for job in self._lookers()), default=None)

    def peek(self, supply: Supply, now: float) -> None:
        """Asks what is cached of a few, where that is not known or may have changed."""
        jobs = [job for job in self._ready(now) if not job.resumes]
        stale = [job for job in jobs if job.is_stale(self._version, now)]
        for job in sorted(stale, key=lambda each: each.peek_order)[:PEEKS_A_STEP]:
            job.peeked(supply.peek(job.number), self._version, now)

    def total_lacking(self, now: float) -> int:
        """Counts the tokens that those lack who can be admitted now."""
        return sum(job.lacking for job in self._ready(now))

    def ready_count(self, now: float) -> int:
        """Counts those that can be admitted now."""
        return len(self._ready(now))

    def next(self, now: float, most_lacking: int | None) -> Waiting | None:
        """Name who is to be admitted now, of those that lack so few tokens; None: nobody."""
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
        """Takes in that a request waits no more; nothing where it was removed."""
        if self._jobs.get(job.number) is not job:
            return
        if not job.resumes:
            oldest = min(each.number for each in [*self._ready(now), job])
            self._passes = 0 if job.number == oldest else self._passes + 1
        del self._jobs[job.number]

    def takes_over(self, job: Waiting, now: float) -> None:
        """Takes in that a request came to run: if it gave up, others wait for it from now on."""
        if job.may_yield or not job.one_is_enough:
            return
        for other in self._jobs.values():
            if other.prefix == job.prefix:
                other.wait_anew(now)

    def _ready(self, now: float) -> list[Waiting]:
        """Gives those that can be admitted; of those that wait for the same work, one looks."""
        free = [job for job in self._jobs.values() if job.prefix is None]
        return free + [job for job in self._lookers() if job.look_at <= now]

    def _lookers(self) -> list[Waiting]:
        """Gives the oldest of each prefix that is computed elsewhere."""
        first: dict[Hashable, Waiting] = {}
        for job in self._jobs.values():
            if job.prefix is not None:
                other = first.setdefault(job.prefix, job)
                if job.number < other.number:
                    first[job.prefix] = job
        return list(first.values())


MAX_STEP_TOKENS: Final = 512
MAX_RUNNING: Final = 64
# So many at most are looked at in a step that wait for what is done elsewhere.
LOOKS_A_STEP: Final = 8
# Where slots were short, others on the same store may have given some back by then.
REOPEN_SECONDS: Final = 0.1


@dataclass(slots=True)
class _Job:
    """A request that runs: how many ids it has, and how many of them are computed."""

    number: int
    token_count: int
    computed: int

    @property
    def missing(self) -> int:
        return self.token_count - self.computed


class Scheduler:
    """Keeps the requests that wait and those that run, and plans one step after the other.

    Requests have numbers that grow as they come: the lower one is the older. Of those that run
    the oldest always gets its pages, since each younger one gives way to it; one that gave way
    goes before all that never ran. So there is always progress, whatever other engines hold of
    the same store: nobody waits for slots while it holds some. One engine thread uses it.
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
        """Requests that hold nothing yet, or nothing any more."""
        return len(self._queue)

    @property
    def running_count(self) -> int:
        """Requests that have pages."""
        return len(self._running)

    @property
    def next_look(self) -> float | None:
        """When a step can do something again, where all wait for another's work; else None."""
        return None if self._running else self._queue.next_look()

    def add(self, number: int, token_count: int) -> None:
        """Have a request of so many ids wait; its number is above all before it."""
        self._queue.add(number, token_count)

    def remove(self, number: int) -> None:
        """Forgets a request, whatever became of it; nothing the second time."""
        self._queue.remove(number)
        if self._running.pop(number, None) is not None:
            self._closed_until = 0.0
            self.published(prompt=True)

    def computed(self, part: Part) -> None:
        """Takes in that a part was computed."""
        self._running[part.number].computed += part.token_count

    def extended(self, number: int) -> None:
        """Takes in that a running request has one id more, to be computed too."""
        self._running[number].token_count += 1

    def published(self, *, prompt: bool) -> None:
        """Takes in that this engine published pages; with ``prompt`` the last of a prompt's."""
        self._queue.published()
        if prompt:
            self._queue.look_again()

    def restart(self, number: int) -> None:
        """Have a running request that holds nothing any more wait again, before the others."""
        job = self._running.pop(number, None)
        if job is not None:  # nothing failed on the way
            self._queue.add(number, job.token_count, resumes=True)
            self._queue.look_again()

    def plan(self, supply: Supply, now: float) -> list[Part]:
        """Admits what has room, and choose the parts of the next step, all with their pages.

        First the next token of each request that decodes, then what is missing of prompts,
        within the step's tokens. No part where nothing can be done at ``now``, in seconds.
        """
        if not self._running or now >= self._closed_until:
            self._admit(supply, now)
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
        """Returns whether what is cached decides who of the waiting is admitted now."""
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
        """Counts the tokens of the next step that nobody needs who runs."""
        return self._max_step_tokens - sum(job.missing for job in self._running.values())

    def _room_beside(self) -> int:
        """Counts those that a step has for short prompts beside a long one."""
        decodes = [job for job in self._running.values() if job.missing == 1]
        beside = (self._max_step_tokens - len(decodes)) // 2
        prompts = [job for job in self._running.values() if job.missing > 1]
        return beside - sum(job.missing for job in _short(prompts, beside))

    def _parts(self) -> Iterator[Part]:
        """Chooses what is computed: what decodes, short rests of prompts, then the oldest prompts.

        A prompt of which most is cached does not wait for a long one; that has half the step.
        """
        jobs = [self._running[number] for number in sorted(self._running)]
        decodes = [job for job in jobs if job.missing == 1]
        yield from (Part(job.number, 1) for job in decodes)
        # However many decode, a prompt goes on.
        left = max(self._max_step_tokens - len(decodes), 1)
        prompts = [job for job in jobs if job.missing > 1]
        short = _short(prompts, left // 2)
        for job in short + [job for job in prompts if job not in short]:
            count = min(job.missing, left)
            if count:
                yield Part(job.number, count)
            left -= count

    def _provide(self, parts: list[Part], supply: Supply, now: float) -> list[Part]:
        """Have pages for all parts; where there are too few, the youngest requests give way."""
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
