"""Which tokens each step computes, and who gives way when slots are short.

Pure: no torch, no store, no clock. What it decides about pages it asks of a :class:`Supply`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple, Protocol

MAX_STEP_TOKENS: Final = 512
MAX_RUNNING: Final = 64


class Part(NamedTuple):
    """The next ``token_count`` tokens of a request, to be computed in this step."""

    number: int
    token_count: int


class Admitted(NamedTuple):
    """A request has pages: of its ``token_count`` tokens the first ``computed`` are in them."""

    token_count: int
    computed: int


class NotAdmitted(Enum):
    """Why a request did not come to run: no pages for its prompt just now, or it has ended."""

    NO_ROOM = 1
    ENDED = 2


class Supply(Protocol):
    """Gets and gives back the pages of requests, by their numbers."""

    def admit(self, number: int) -> Admitted | NotAdmitted:
        """Match a waiting request and have pages for all its tokens; else hold nothing."""
        ...

    def grow(self, wanted: Sequence[tuple[int, int]]) -> bool:
        """Have the store's pages for each ``(number, tokens)``, all or none; tells which."""
        ...

    def grow_private(self, number: int, token_count: int) -> bool:
        """Have pages of the engine's own for what a request lacks, all or none; tells which."""
        ...

    def give_way(self, number: int) -> None:
        """Put what is complete of a request into the store, and give back all that it holds."""
        ...


@dataclass(slots=True)
class _Job:
    """A request: how many ids it has, and how many of them are computed."""

    number: int
    token_count: int
    computed: int = 0

    @property
    def missing(self) -> int:
        return self.token_count - self.computed


class Scheduler:
    """Keeps the requests that wait and those that run, and plans one step after the other.

    Requests have numbers that grow as they come: the lower one is the older. Of those that run
    the oldest always gets its pages, since each younger one gives way to it; one that gave way
    waits again in its place. One engine thread uses it.
    """

    def __init__(
        self, *, max_step_tokens: int = MAX_STEP_TOKENS, max_running: int = MAX_RUNNING
    ) -> None:
        """Raises ``ValueError`` for a bound below 1."""
        if max_step_tokens < 1 or max_running < 1:
            raise ValueError(f"bounds of a step: {max_step_tokens} tokens, {max_running} requests")
        self._max_step_tokens = max_step_tokens
        self._max_running = max_running
        self._waiting: dict[int, _Job] = {}
        self._running: dict[int, _Job] = {}
        self.preemptions = 0

    @property
    def waiting_count(self) -> int:
        """Requests that hold nothing yet, or nothing any more."""
        return len(self._waiting)

    @property
    def running_count(self) -> int:
        """Requests that have pages."""
        return len(self._running)

    def add(self, number: int, token_count: int) -> None:
        """Have a request of so many ids wait; its number is above all before it."""
        self._waiting[number] = _Job(number, token_count)

    def remove(self, number: int) -> None:
        """Forget a request, whatever became of it; nothing the second time."""
        self._waiting.pop(number, None)
        self._running.pop(number, None)

    def computed(self, part: Part) -> None:
        """Take in that a part was computed."""
        self._running[part.number].computed += part.token_count

    def extended(self, number: int) -> None:
        """Take in that a running request has one id more, to be computed too."""
        self._running[number].token_count += 1

    def restart(self, number: int) -> None:
        """Have a running request that holds nothing any more wait again."""
        job = self._running.pop(number)
        job.computed = 0
        self._waiting[number] = job

    def plan(self, supply: Supply) -> list[Part]:
        """Admit what has room, and choose the parts of the next step, all with their pages.

        First the next token of each request that decodes, then what the oldest ones lack of
        their prompts, within the step's tokens. No part where nothing can be done.
        """
        self._admit(supply)
        return self._provide(list(self._parts()), supply)

    def _admit(self, supply: Supply) -> None:
        while self._waiting and len(self._running) < self._max_running and self._room():
            number = min(self._waiting)
            found = supply.admit(number)
            if found is NotAdmitted.NO_ROOM:
                return
            job = self._waiting.pop(number, None)
            if job is not None and isinstance(found, Admitted):
                job.token_count, job.computed = found
                self._running[number] = job

    def _room(self) -> int:
        """Count the tokens of a step that nobody needs who runs."""
        return self._max_step_tokens - sum(job.missing for job in self._running.values())

    def _parts(self) -> Iterator[Part]:
        jobs = [self._running[number] for number in sorted(self._running)]
        decodes = [job for job in jobs if job.missing == 1]
        yield from (Part(job.number, 1) for job in decodes)
        # However many decode, a prompt goes on.
        left = max(self._max_step_tokens - len(decodes), 1)
        for job in jobs:
            if job.missing > 1 and left:
                count = min(job.missing, left)
                left -= count
                yield Part(job.number, count)

    def _provide(self, parts: list[Part], supply: Supply) -> list[Part]:
        """Have pages for all parts; where there are too few, the youngest requests give way."""
        if not parts or supply.grow([self._wanted(part) for part in parts]):
            return parts
        for part in sorted(parts):
            wanted = self._wanted(part) if part.number in self._running else None
            while wanted and not (supply.grow([wanted]) or supply.grow_private(*wanted)):
                youngest = max(self._running)
                self._preempt(youngest, supply)
                if youngest == part.number:
                    break
        return [part for part in parts if part.number in self._running]

    def _wanted(self, part: Part) -> tuple[int, int]:
        return part.number, self._running[part.number].computed + part.token_count

    def _preempt(self, number: int, supply: Supply) -> None:
        supply.give_way(number)
        self.preemptions += 1
        self.restart(number)
