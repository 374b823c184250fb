"""The pages of all requests that run: got from the store and from the private arena."""

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

# A prompt of fewer tokens says more of what a step costs at all.
LEAST_TOKENS: Final = 64
# Of what was measured before, what counts still beside one more prompt.
FADING: Final = 0.8

# Of an engine that computed no prompt yet: that of a small model on two cores.
UNKNOWN_SPEED: Final = 200.0


class PrefillSpeed:
    """Tokens a second, over the latest prompts, the longer ones counting more. Not thread-safe."""

    def __init__(self) -> None:
        self._tokens = 0.0
        self._seconds = 0.0

    @property
    def tokens_per_second(self) -> float:
        """As far as was measured; 0 before the first prompt."""
        return self._tokens / self._seconds if self._seconds else 0.0

    def seconds_for(self, token_count: int) -> float:
        """Says how long so many tokens take, as far as is known."""
        return token_count / (self.tokens_per_second or UNKNOWN_SPEED)

    def note(self, token_count: int, seconds: float) -> None:
        """Takes in a prompt of which ``token_count`` tokens were computed, in so many seconds."""
        if token_count >= LEAST_TOKENS and seconds > 0:
            self._tokens = self._tokens * FADING + token_count
            self._seconds = self._seconds * FADING + seconds


OPENING: Final = "a namespace that is being opened"
# Between two looks at what another computes: a share of what computing it takes, within bounds.
LOOK_SHARE: Final = 0.05
LOOK_SECONDS: Final = (0.005, 0.05)
# In seconds: what takes less is computed before another's end would be seen.
WORTH_WAITING: Final = 0.01
# However well another gets on, nobody waits for it longer than computing all of it so many times:
# for one that dies, and one that takes over. Then one of those that wait computes it.
MOST_WAITS: Final = 3.0


class PageSupply:
    """What the scheduler asks for pages, over an engine's requests. One engine thread uses it.

    A failure of one request fails that one, and is none here.
    """

    def __init__(
        self,
        pool: PagePool,
        private: PrivateArena,
        namespaces: SaltedNamespaces | None,
        table: RequestTable,
        speed: PrefillSpeed,
    ) -> None:
        """Looks requests up in ``table``; without ``namespaces`` all pages are private."""
        self._pool = pool
        self._private = private
        self._namespaces = namespaces
        self._table = table
        self._speed = speed

    def peek(self, number: int) -> int:
        """Asks the store what is cached; zero for a request that takes no part in it."""
        run = self._table.runs[number]
        namespace = self._namespace(run)
        if namespace is None or not run.shares_cache:
            return 0
        with tracing.span("peek", run.span):
            return namespace.peek(run.ids)

    def admit(self, number: int, *, may_yield: bool) -> Admitted | Elsewhere | NotAdmitted:
        """Matches all ids of a request and have pages for them.

        Of the store's and, where it has too few, private ones; where nothing else runs there is
        always room. A token that the store knows is said at once.
        """
        run = self._table.runs[number]
        if number in self._table.aborted:
            return NotAdmitted.ENDED
        try:
            namespace = self._namespace(run)
            opening = self._opening(run) if may_yield and namespace is not None else None
            with tracing.span("lookup", run.span):
                found = opening or self._open(run, namespace, may_yield=may_yield)
        except Exception as error:  # noqa: BLE001 - it is this request's own
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
        """Have pages for each request's tokens: one call to the store where any lacks some."""
        pages = [(self._pages(number), tokens) for number, tokens in wanted]
        private = [each for each in pages if each[0].has_private]
        stored = [each for each in pages if not each[0].has_private]
        # Each has its pages afterwards, or none of them is sure to.
        return grow_together(stored) & all(self._allocate(*each) for each in private)

    def grow_private(self, number: int, token_count: int) -> bool:
        """Have private pages for what a request lacks."""
        return self._allocate(self._pages(number), token_count)

    def give_way(self, number: int) -> None:
        """Puts what is complete into the store, and releases all."""
        run = self._table.runs[number]
        run.generation.preemptions += 1
        try:
            run.give_back(publish=True)
        except Exception as error:  # noqa: BLE001 - it is this request's own
            self._table.fail(run, error)

    def _namespace(self, run: RequestRun) -> kvstore_client.Namespace | None:
        if self._namespaces is None or not run.uses_store:
            return None
        return self._namespaces.find(run.request.cache_salt, self._used_salts)

    def _used_salts(self) -> set[str]:
        return {each.request.cache_salt for each in self._table.runs.values()}

    def _opening(self, run: RequestRun) -> Elsewhere | None:
        """Returns whether a request's namespace is about to be open."""
        salt = run.request.cache_salt
        if self._namespaces is None or not self._namespaces.is_opening(salt):
            return None
        return Elsewhere((OPENING, salt), LOOK_SECONDS[0], OPENING_SECONDS, one_is_enough=False)

    def _open(
        self, run: RequestRun, namespace: kvstore_client.Namespace | None, *, may_yield: bool
    ) -> SequencePages | Elsewhere | None:
        """Match, and reserve what is missing; None where there is no room."""
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
        """Have a request look again when the other may have come some way."""
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
