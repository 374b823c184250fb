"""Which tokens each step computes, and who gives way when slots are short.

Pure: no torch, no store, no clock. What it decides about pages it asks of a :class:`Supply`, and
times are handed in. As vLLM's scheduler does, a step goes on with those that run before it admits
others, and the latest gives way; as SGLang's, it admits those first of which most is cached.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from inference_worker.engine.scheduler_queue import Waiting, WaitingQueue
from inference_worker.engine.scheduler_supply import Admitted, Elsewhere, NotAdmitted, Part, Supply

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
