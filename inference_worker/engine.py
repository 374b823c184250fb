"""The reference engine: one sequence at a time, on the store's pages."""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from operator import index
from typing import Final

import kvstore_client
from inference_worker.errors import RequestTooLongError
from inference_worker.generation import Generation
from inference_worker.model import PagedModel
from inference_worker.page_pool import PagePool
from inference_worker.prefill_speed import PrefillSpeed
from inference_worker.private_arena import PRIVATE_EXTENT, PrivateArena
from inference_worker.request_run import CHUNK_TOKENS, OnPublished, RequestRun
from inference_worker.sampling import GREEDY, Sampler, SamplingOptions
from inference_worker.sequence_pages import SequencePages
from kvstore_client.errors import PageRecycled

PAGE_TOKENS: Final = 16


OnToken = Callable[[int], None]


def _ignore(what: object) -> None:
    del what


def _never() -> bool:
    return False


class Engine:
    """Generates for one request at a time.

    Without a namespace, or where the store fails, it computes the same on its private arena; so it
    does, from the beginning, where the store gives pages away that the request uses.
    Not thread-safe.
    """

    def __init__(
        self,
        model: PagedModel,
        namespace: kvstore_client.Namespace | None,
        *,
        page_tokens: int = PAGE_TOKENS,
        longest: int | None = None,
        chunk_tokens: int = CHUNK_TOKENS,
    ) -> None:
        """Make room of its own for one sequence of ``longest`` tokens, else the model's longest."""
        self._model = model
        self._namespace = namespace
        self._chunk_tokens = chunk_tokens
        self._speed = PrefillSpeed()
        self._longest = longest or model.max_tokens
        layout = model.layout(page_tokens)
        self._pool = PagePool(layout, model.device)
        self._private = PrivateArena(layout, self._longest, model.device)
        self._pool.add_extent(PRIVATE_EXTENT, self._private.tensor)

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence, prompt and output together."""
        return self._longest

    @property
    def private_slots_used(self) -> int:
        """Slots of the private arena that a sequence has now."""
        return self._private.used_count

    def generate(
        self,
        prompt_ids: Sequence[int],
        max_tokens: int,
        *,
        use_store: bool = True,
        sampling: SamplingOptions = GREEDY,
        stop_ids: frozenset[int] = frozenset(),
        on_token: OnToken = _ignore,
        on_published: OnPublished = _ignore,
        stopped: Callable[[], bool] = _never,
    ) -> Generation:
        """Continue a prompt by ``max_tokens`` ids, or to the first of ``stop_ids``.

        It ends sooner where ``stopped``, asked after each id, says so.

        ``on_token`` is called with each id as soon as it is chosen, and ``on_published`` after
        each insert that the store answered, with its pages.
        Everything held is given back at the end, also when this raises. Raises
        ``RequestTooLongError``, ``ValueError`` for an empty prompt, no token to give or an id that
        the model does not have, and ``TypeError`` for an id that is no integer.
        """
        begin = time.perf_counter()
        ids = self._checked(prompt_ids, max_tokens)
        namespace = self._namespace if use_store else None
        # The last token given is not computed.
        longest = len(ids) + max_tokens - 1
        with ExitStack() as held:
            run = RequestRun(
                self._model,
                self._pool,
                held.enter_context(
                    SequencePages(
                        self._pool,
                        self._private,
                        namespace,
                        ids,
                        longest=longest,
                        accept_next_token=sampling.is_greedy,
                    )
                ),
                ids,
                Sampler(sampling),
                chunk_tokens=self._chunk_tokens,
                on_published=on_published,
            )
            for number in range(1, max_tokens + 1):
                try:
                    token = run.next()
                except PageRecycled as error:
                    held.close()
                    own = SequencePages(self._pool, self._private, None, ids, longest=longest)
                    run.start_over(held.enter_context(own), error)
                    token = run.next()
                if number == 1:
                    run.generation.time_to_first_token = time.perf_counter() - begin
                    self._note_speed(run)
                on_token(token)
                if token in stop_ids or stopped():
                    break
            run.finish()
        return run.generation

    def _note_speed(self, run: RequestRun) -> None:
        """Measure how fast prompts are computed, and tell the store with the next request."""
        seconds = run.generation.time_to_first_token - run.store_seconds
        self._speed.note(run.generation.computed_tokens, seconds)
        if self._namespace is not None:
            self._namespace.prefill_tokens_per_second = self._speed.tokens_per_second

    def _checked(self, prompt_ids: Sequence[int], max_tokens: int) -> list[int]:
        """Return the prompt as a list of its own, if it can be computed; raises as `generate`."""
        ids = [index(each) for each in prompt_ids]
        if not ids or max_tokens < 1:
            raise ValueError(
                "a prompt without tokens" if not ids else f"{max_tokens} tokens to give"
            )
        if min(ids) < 0 or max(ids) >= self._model.vocabulary:
            raise ValueError(f"this model's token ids are from 0 to {self._model.vocabulary - 1}")
        if len(ids) + max_tokens > self._longest:
            raise RequestTooLongError(len(ids), max_tokens, self._longest)
        return ids
