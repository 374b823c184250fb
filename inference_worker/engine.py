"""The reference engine: many sequences a step, on the store's pages."""

import time
from collections.abc import Callable, Sequence
from operator import index
from typing import Final

import torch

import kvstore_client
from inference_worker.engine_stats import EngineStats
from inference_worker.errors import RequestTooLongError
from inference_worker.generation import Generation
from inference_worker.model import PagedModel
from inference_worker.page_pool import PagePool
from inference_worker.page_supply import PageSupply
from inference_worker.prefill_speed import PrefillSpeed
from inference_worker.private_arena import PRIVATE_EXTENT, PrivateArena
from inference_worker.request import FinishReason, Request, RequestListener
from inference_worker.request_outcome import RequestOutcome
from inference_worker.request_run import OnPublished, RequestRun
from inference_worker.request_table import RequestTable
from inference_worker.sampling import GREEDY, SamplingOptions
from inference_worker.scheduler import MAX_RUNNING, MAX_STEP_TOKENS, Part, Scheduler
from inference_worker.step import Step, StepPart
from kvstore_client.errors import PageRecycled

PAGE_TOKENS: Final = 16

OnToken = Callable[[int], None]


def _ignore(what: object) -> None:
    del what


class Engine:
    """Generates for many requests at once, one step after the other.

    Without a namespace, or where the store fails, it computes the same on its private arena; so it
    does for a request that used pages which the store gave away.
    Not thread-safe: one engine thread uses it.
    """

    def __init__(
        self,
        model: PagedModel,
        namespace: kvstore_client.Namespace | None,
        *,
        page_tokens: int = PAGE_TOKENS,
        longest: int | None = None,
        max_step_tokens: int = MAX_STEP_TOKENS,
        max_running: int = MAX_RUNNING,
        private_tokens: int | None = None,
    ) -> None:
        """Take sequences of ``longest`` tokens at most, else of the model's longest.

        A step computes ``max_step_tokens`` at most, but for one of each request that decodes, and
        ``max_running`` requests have pages at a time. ``private_tokens`` is the engine's own room,
        by default for one of the longest sequences; raises ``ValueError`` for less.
        """
        self._model = model
        self._namespace = namespace
        self._speed = PrefillSpeed()
        self._longest = longest or model.max_tokens
        private_tokens = private_tokens or self._longest
        if private_tokens < self._longest:
            raise ValueError(f"{private_tokens} tokens are no room for one of {self._longest}")
        layout = model.layout(page_tokens)
        self._pool = PagePool(layout, model.device)
        self._private = PrivateArena(layout, private_tokens, model.device)
        self._pool.add_extent(PRIVATE_EXTENT, self._private.tensor)
        self._scheduler = Scheduler(max_step_tokens=max_step_tokens, max_running=max_running)
        self._table = RequestTable(self._scheduler.remove)
        self._supply = PageSupply(self._pool, self._private, namespace, self._table)
        self._added = 0
        self._in_step = False
        # Of requests that are to be aborted once it is safe.
        self._aborted: set[int] = set()

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence, prompt and output together."""
        return self._longest

    @property
    def private_slots_used(self) -> int:
        """Slots of the private arena that sequences have now."""
        return self._private.used_count

    @property
    def has_work(self) -> bool:
        """Whether some request waits or runs."""
        return bool(self._table.runs)

    @property
    def next_look(self) -> float | None:
        """Seconds until a step may have something to do, where all wait for another's prefill."""
        return None

    @property
    def stats(self) -> EngineStats:
        """What it does now, and the totals."""
        totals = {f"{name}_tokens": count for name, count in self._table.totals.items()}
        return EngineStats(
            waiting=self._scheduler.waiting_count,
            running=self._scheduler.running_count,
            held_sequences=sum(run.pages is not None for run in self._table.runs.values()),
            private_slots_used=self._private.used_count,
            requests=self._added,
            preemptions=self._scheduler.preemptions,
            **totals,
        )

    def add(
        self, request: Request, listener: RequestListener, *, on_published: OnPublished = _ignore
    ) -> int:
        """Have a request wait for its steps; gives its number within this engine.

        ``on_published`` is called after each insert that the store answered, with its pages.
        Raises ``RequestTooLongError``, ``ValueError`` for an empty prompt, no token to give or an
        id that the model does not have, and ``TypeError`` for an id that is no integer.
        """
        ids = self._checked(request.prompt_ids, request.max_tokens)
        self._added += 1
        number = self._added
        self._table.runs[number] = RequestRun(number, request, ids, listener, on_published)
        self._scheduler.add(number, len(ids))
        return number

    def generation(self, number: int) -> Generation:
        """Say what came so far of a request that has not ended; raises ``KeyError``."""
        return self._table.runs[number].generation

    def abort(self, number: int) -> None:
        """End a request wherever it is; nothing if it has ended.

        What it computed is the store's, and its listener has its end: at once or, where a
        listener calls this, before the step goes on.
        """
        run = self._table.runs.get(number)
        if run is None:
            return
        self._aborted.add(number)
        if not self._in_step:
            self._end_aborted()

    def step(self) -> bool:
        """Run one batch, at most; False where nothing could be done now."""
        known = self._scheduler.running_count, len(self._table.runs)
        self._in_step = True
        try:
            parts = self._scheduler.plan(self._supply)
            self._end_aborted()
            batch = self._batch(parts)
            if batch:
                self._compute(batch)
            self._end_aborted()
        finally:
            self._in_step = False
        return bool(parts) or known != (self._scheduler.running_count, len(self._table.runs))

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
        stopped: Callable[[], bool] = lambda: False,
    ) -> Generation:
        """Continue a prompt by ``max_tokens`` ids, or to the first of ``stop_ids``.

        It ends sooner where ``stopped``, asked after each id, says so.

        ``on_token`` is called with each id as soon as it is chosen, and ``on_published`` as by
        :meth:`add`. Everything held is given back at the end, also when this raises: what
        ``add`` raises, and what made the request fail.
        """
        request = Request(
            prompt_ids=prompt_ids,
            max_tokens=max_tokens,
            sampling=sampling,
            stop_ids=stop_ids,
            cache_prefix=use_store,
        )

        def hand_on(token: int) -> None:
            on_token(token)
            if stopped():
                self.abort(number)

        outcome = RequestOutcome(hand_on)
        number = self.add(request, outcome, on_published=on_published)
        try:
            while not outcome.there:
                if not self.step():
                    time.sleep(self.next_look or 0)
        except BaseException:
            if number in self._table.runs:
                self._table.release(self._table.runs[number], publish=False)
            raise
        return outcome.generation()

    def _batch(self, parts: list[Part]) -> list[tuple[RequestRun, Part, StepPart]]:
        """Give the parts of the requests that are still there, ready to be computed."""
        batch = []
        for part in parts:
            run = self._table.runs.get(part.number)
            if run is None:
                continue
            try:
                batch.append((run, part, run.part(part.token_count)))
            except PageRecycled as error:
                self._distrust(run, error)
            except Exception as error:  # noqa: BLE001 - it is this request's own
                self._table.fail(run, error)
        return batch

    def _compute(self, batch: list[tuple[RequestRun, Part, StepPart]]) -> None:
        """Run a batch, and tell the tokens that came of it; then the store is told."""
        try:
            ids = [id_ for run, part, _ in batch for id_ in run.next_ids(part.token_count)]
            step = Step(self._pool, tuple(step_part for _, _, step_part in batch))
            logits = iter(self._model.forward(step, torch.tensor(ids)))
        except Exception as error:  # noqa: BLE001 - it is theirs who were in the step
            for run, _, _ in batch:
                self._table.fail(run, error)
            return
        ended: dict[int, FinishReason] = {}
        for run, part, step_part in batch:
            run.advance(part.token_count)
            self._scheduler.computed(part)
            self._table.totals["computed"] += part.token_count
            if step_part.wants_logits:
                row = next(logits)
                reason = None if run.number in self._aborted else self._choose(run, row)
                if reason is not None:
                    ended[run.number] = reason
        for run, _, _ in batch:
            if run.number in self._table.runs and run.number not in self._aborted:
                self._publish(run, ended.get(run.number))

    def _choose(self, run: RequestRun, logits: torch.Tensor) -> FinishReason | None:
        """Choose a request's next token and tell it; gives why it is the last, where it is."""
        try:
            run.choose(logits)
        except PageRecycled as error:
            self._distrust(run, error)
            return None
        except Exception as error:  # noqa: BLE001 - it is this request's own
            self._table.fail(run, error)
            return None
        self._scheduler.extended(run.number)
        if len(run.generation.output_ids) == 1:
            self._note_speed(run)
        return self._table.tell(run)

    def _publish(self, run: RequestRun, ended: FinishReason | None) -> None:
        if ended is not None:
            self._table.end(run, ended)
            return
        try:
            run.publish()
        except Exception as error:  # noqa: BLE001 - it is this request's own
            self._table.fail(run, error)

    def _distrust(self, run: RequestRun, why: PageRecycled) -> None:
        self._table.distrust(run, why)
        if run.number in self._table.runs:
            self._scheduler.restart(run.number)

    def _end_aborted(self) -> None:
        while self._aborted:
            run = self._table.runs.get(self._aborted.pop())
            if run is not None:
                self._table.end(run, FinishReason.ABORT)

    def _note_speed(self, run: RequestRun) -> None:
        """Measure how fast prompts are computed, and tell the store with the next request."""
        self._speed.note(run.generation.computed_tokens, run.seconds_of_prompt)
        if self._namespace is not None:
            self._namespace.prefill_tokens_per_second = self._speed.tokens_per_second

    def _checked(self, prompt_ids: Sequence[int], max_tokens: int) -> list[int]:
        """Return the prompt as a list of its own, if it can be computed; raises as `add`."""
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
