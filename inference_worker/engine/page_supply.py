"""The pages of all running requests, from the store and from the private arena."""

from collections.abc import Sequence
from typing import Final

import kvstore_client
from inference_worker.engine.request_run import RequestRun
from inference_worker.engine.request_table import RequestTable
from inference_worker.engine.scheduler import Admitted, Elsewhere, NotAdmitted
from inference_worker.errors import ArenaExhaustedError
from inference_worker.pages.acquisition import grow_together
from inference_worker.pages.namespaces import OPENING_SECONDS, SaltedNamespaces
from inference_worker.pages.pool import PagePool
from inference_worker.pages.private_arena import PrivateArena
from inference_worker.pages.sequence import SequencePages
from kvstore import tracing

# Fewer tokens measure the fixed cost of a step rather than the speed.
LEAST_TOKENS: Final = 64
# The weight of earlier measurements when a prompt is added.
FADING: Final = 0.8

# Before the first prompt: the speed of a small model on two cores.
UNKNOWN_SPEED: Final = 200.0


class PrefillSpeed:
    """Prefill speed in tokens a second over the latest prompts.

    Longer prompts count more. Not thread-safe.
    """

    def __init__(self) -> None:
        self._tokens = 0.0
        self._seconds = 0.0

    @property
    def tokens_per_second(self) -> float:
        """The measured speed; 0 before the first prompt."""
        return self._tokens / self._seconds if self._seconds else 0.0

    def seconds_for(self, token_count: int) -> float:
        """Estimates how long a prefill of ``token_count`` tokens takes, in seconds."""
        return token_count / (self.tokens_per_second or UNKNOWN_SPEED)

    def note(self, token_count: int, seconds: float) -> None:
        """Adds a prompt of which ``token_count`` tokens were computed in ``seconds``."""
        if token_count >= LEAST_TOKENS and seconds > 0:
            self._tokens = self._tokens * FADING + token_count
            self._seconds = self._seconds * FADING + seconds


OPENING: Final = "a namespace that opens"
# The interval between two checks of another worker's prefill: a share of the time that the prefill
# takes, within bounds.
LOOK_SHARE: Final = 0.05
LOOK_SECONDS: Final = (0.005, 0.05)
# In seconds. A shorter prefill is computed before another worker's end would be noticed.
WORTH_WAITING: Final = 0.01
# A request waits for another worker's prefill at most this many times its own prefill time. Then
# one of the waiting requests computes it. The other worker may be dead, and a successor needs time
# as well.
MOST_WAITS: Final = 3.0


class PageSupply:
    """Pages for the scheduler, over an engine's requests. One engine thread uses it.

    An error in one request ends that request only.
    """

    def __init__(
        self,
        pool: PagePool,
        private: PrivateArena,
        namespaces: SaltedNamespaces | None,
        table: RequestTable,
        speed: PrefillSpeed,
    ) -> None:
        """Finds requests in ``table``; without ``namespaces`` all pages are private."""
        self._pool = pool
        self._private = private
        self._namespaces = namespaces
        self._table = table
        self._speed = speed

    def peek(self, number: int) -> int:
        """Returns how many tokens the store has cached; 0 for a request that does not use it."""
        run = self._table.runs[number]
        namespace = self._namespace(run)
        if namespace is None or not run.shares_cache:
            return 0
        with tracing.span("peek", run.span):
            return namespace.peek(run.ids)

    def prefetch(self, number: int) -> None:
        """Begins to load a waiting request's pages from the store's tier 3, if it has one."""
        run = self._table.runs[number]
        namespace = self._namespace(run)
        if namespace is None or not run.shares_cache or not namespace.can_prefetch:
            return
        with tracing.span("prefetch", run.span):
            namespace.prefetch(run.ids)

    def admit(self, number: int, *, may_yield: bool) -> Admitted | Elsewhere | NotAdmitted:
        """Matches all ids of a request and acquires pages for them.

        Pages come from the store and, if it has too few, from the private arena. If nothing else
        runs there is always room. A next token that the store knows is reported at once.
        """
        run = self._table.runs[number]
        if number in self._table.aborted:
            return NotAdmitted.ENDED
        try:
            namespace = self._namespace(run)
            opening = self._opening(run) if may_yield and namespace is not None else None
            with tracing.span("lookup", run.span):
                found = opening or self._open(run, namespace, may_yield=may_yield)
        except Exception as error:  # noqa: BLE001 - fails this request only
            self._table.fail(run, error)
            return NotAdmitted.ENDED
        if isinstance(found, Elsewhere):
            self._table.yielded(run)
            return found
        if found is None:
            return NotAdmitted.NO_ROOM
        pages = found
        self._table.opened(run, pages)
        if pages.next_token is not None:
            run.say(pages.next_token)
            reason = self._table.tell(run)
            if reason is not None:
                self._table.end(run, reason)
            if number not in self._table.runs:
                return NotAdmitted.ENDED
        return Admitted(len(run.ids), run.computed)

    def grow(self, wanted: Sequence[tuple[int, int]]) -> bool:
        """Acquires pages for each request's tokens: one call to the store if any lacks some."""
        pages = [(self._pages(number), tokens) for number, tokens in wanted]
        private = [each for each in pages if each[0].has_private]
        stored = [each for each in pages if not each[0].has_private]
        # Both sides run: the result is True only if every request has its pages.
        return grow_together(stored) & all(self._allocate(*each) for each in private)

    def grow_private(self, number: int, token_count: int) -> bool:
        """Acquires private pages for the missing tokens of a request."""
        return self._allocate(self._pages(number), token_count)

    def give_way(self, number: int) -> None:
        """Publishes a request's complete pages, then releases all its pages."""
        run = self._table.runs[number]
        run.generation.preemptions += 1
        try:
            run.give_back(publish=True)
        except Exception as error:  # noqa: BLE001 - fails this request only
            self._table.fail(run, error)

    def _namespace(self, run: RequestRun) -> kvstore_client.Namespace | None:
        if self._namespaces is None or not run.uses_store:
            return None
        return self._namespaces.find(run.request.cache_salt, self._used_salts)

    def _used_salts(self) -> set[str]:
        return {each.request.cache_salt for each in self._table.runs.values()}

    def _opening(self, run: RequestRun) -> Elsewhere | None:
        """Returns a wait if a request's namespace is about to open."""
        salt = run.request.cache_salt
        if self._namespaces is None or not self._namespaces.is_opening(salt):
            return None
        return Elsewhere((OPENING, salt), LOOK_SECONDS[0], OPENING_SECONDS, one_is_enough=False)

    def _open(
        self, run: RequestRun, namespace: kvstore_client.Namespace | None, *, may_yield: bool
    ) -> SequencePages | Elsewhere | None:
        """Matches, and reserves the missing pages; returns None if there is no room."""
        worth = self._speed.seconds_for(len(run.ids))
        pages = SequencePages(
            self._pool,
            self._private,
            namespace,
            run.ids,
            longest=run.longest,
            accept_next_token=run.request.sampling.is_greedy,
            shared=run.shares_cache,
            yield_idle=worth if may_yield and worth >= WORTH_WAITING else None,
        )
        if pages.in_flight is not None:
            return self._computed_elsewhere(run, pages, pages.in_flight)
        try:
            pages.grow_private(len(run.ids))
        except ArenaExhaustedError:
            pages.close()
            if any(each.pages is not None for each in self._table.runs.values()):
                return None
            raise
        except BaseException:
            pages.close()
            raise
        return pages

    def _computed_elsewhere(
        self, run: RequestRun, pages: SequencePages, other: kvstore_client.InFlight
    ) -> Elsewhere:
        """Returns the wait for another worker's prefill, until it has made progress."""
        run.generation.store_seconds += pages.store_seconds
        pages.close()
        missing = self._speed.seconds_for(other.token_count - other.inserted_token_count)
        least, most = LOOK_SECONDS
        return Elsewhere(
            hash((run.request.cache_salt, *run.ids[: other.token_count])),
            look_after=min(max(LOOK_SHARE * missing, least), most),
            at_most=MOST_WAITS * self._speed.seconds_for(len(run.ids)),
        )

    def _allocate(self, pages: SequencePages, token_count: int) -> bool:
        try:
            pages.grow_private(token_count)
        except ArenaExhaustedError:
            return False
        return True

    def _pages(self, number: int) -> SequencePages:
        pages = self._table.runs[number].pages
        assert pages is not None  # it runs
        return pages
