"""Which of the waiting requests goes next."""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final

from inference_worker.engine.scheduler_supply import Elsewhere, Supply

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
