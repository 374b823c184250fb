"""The reference engine: computes many sequences in each step, on the store's pages."""

import time
from collections.abc import Callable, Sequence
from operator import index
from typing import Final

import torch

import kvstore_client
from inference_worker.engine.async_engine import EngineStats
from inference_worker.engine.batch import BatchRunner
from inference_worker.engine.page_supply import PageSupply, PrefillSpeed
from inference_worker.engine.request import (
    GREEDY,
    FinishReason,
    Generation,
    Request,
    RequestListener,
    RequestOutcome,
    SamplingOptions,
)
from inference_worker.engine.request_run import OnPublished, RequestRun
from inference_worker.engine.request_table import RequestTable
from inference_worker.engine.scheduler import MAX_RUNNING, MAX_STEP_TOKENS, Scheduler
from inference_worker.errors import (
    BadLengthError,
    BadPromptError,
    BadSaltError,
    DeviceLostError,
    RequestTooLongError,
)
from inference_worker.model.device import DeviceWork
from inference_worker.model.model import PagedModel
from inference_worker.pages.layout import PageLayout, PageRef
from inference_worker.pages.namespaces import SaltedNamespaces
from inference_worker.pages.pool import PagePool
from inference_worker.pages.private_arena import PRIVATE_EXTENT, PrivateArena

# The CPU needs an estimated 15 to 25 ms to launch the kernels of a step of an 8B model. 4,096
# tokens are about 65 TFLOP, so the GPU computes for longer than that. vLLM uses 8,192 on large
# GPUs, with twice the memory for activations.
CUDA_STEP_TOKENS: Final = 4096
# Neither the model nor the store can use the private arena's memory. It is at most a sixteenth of
# the device, and at most 4 GiB: 29,120 tokens of Qwen3-8B on a GPU of 64 GiB or more.
PRIVATE_SHARE: Final = 16
PRIVATE_BYTES: Final = 4 << 30


def step_tokens(device: torch.device) -> int:
    """Returns the tokens of a step: 512 on a CPU, 4,096 on a GPU."""
    return CUDA_STEP_TOKENS if device.type == "cuda" else MAX_STEP_TOKENS


def longest_sequence(model: PagedModel, page_tokens: int) -> int:
    """Returns the longest sequence in tokens that an engine accepts by default.

    On a CPU, which allocates memory when it is touched, it is the model's longest. On a GPU it is
    bounded by the private arena.
    """
    if model.device.type != "cuda":
        return model.max_tokens
    device_bytes: int = torch.cuda.get_device_properties(model.device).total_memory
    return longest_within(model.max_tokens, model.layout(page_tokens), device_bytes)


def longest_within(most_tokens: int, layout: PageLayout, device_bytes: int) -> int:
    """Returns the smaller of ``most_tokens`` and the whole pages in the private share of a GPU."""
    room = min(PRIVATE_BYTES, device_bytes // PRIVATE_SHARE)
    return min(most_tokens, max(1, room // layout.page_bytes) * layout.page_tokens)


PAGE_TOKENS: Final = 16

OnToken = Callable[[int], None]


def _ignore(what: object) -> None:
    del what


class Engine:
    """Generates for many requests at once, one step after the other.

    Without a namespace it computes on its private arena. It also does so if the store fails, and
    for a request that used pages which the store recycled. Not thread-safe: one engine thread uses
    it.
    """

    def __init__(
        self,
        model: PagedModel,
        namespace: kvstore_client.Namespace | None,
        *,
        page_tokens: int = PAGE_TOKENS,
        longest: int | None = None,
        max_step_tokens: int | None = None,
        max_running: int = MAX_RUNNING,
        private_tokens: int | None = None,
    ) -> None:
        """Accepts sequences of at most ``longest`` tokens, by default ``longest_sequence``.

        A step computes at most ``max_step_tokens``, by default ``step_tokens``, besides one token
        of each request that decodes. At most ``max_running`` requests have pages at a time.
        ``private_tokens`` is the size of the private arena, by default ``longest``. Raises
        ``ValueError`` if it is less.
        """
        self._model = model
        self._speed = PrefillSpeed()
        self._longest = longest or longest_sequence(model, page_tokens)
        private_tokens = private_tokens or self._longest
        if private_tokens < self._longest:
            raise ValueError(
                f"private_tokens is {private_tokens}: one sequence needs {self._longest}"
            )
        layout = model.layout(page_tokens)
        self._pool = PagePool(layout, model.device)
        self._private = PrivateArena(layout, private_tokens, model.device)
        self._pool.add_extent(PRIVATE_EXTENT, self._private.tensor)
        if max_step_tokens is None:
            max_step_tokens = step_tokens(model.device)
        self._scheduler = Scheduler(max_step_tokens=max_step_tokens, max_running=max_running)
        self._table = RequestTable(self._scheduler.remove, DeviceWork(model.device).check)
        self._namespaces = None if namespace is None else SaltedNamespaces(namespace)
        self._supply = PageSupply(
            self._pool, self._private, self._namespaces, self._table, self._speed
        )
        self._batches = BatchRunner(
            model,
            self._pool,
            self._scheduler,
            self._table,
            # Records its event on the stream that is current when the engine computes.
            wait_for_device=lambda: DeviceWork(model.device).wait(),
            on_first_token=self._note_speed,
        )
        self._added = 0
        self._in_step = False

    @property
    def longest(self) -> int:
        """The longest sequence in tokens, prompt and output together."""
        return self._longest

    @property
    def max_running(self) -> int:
        """The most requests that have pages at a time."""
        return self._scheduler.max_running

    @property
    def private_slots_used(self) -> int:
        """Slots of the private arena that sequences hold now."""
        return self._private.used_count

    @property
    def has_work(self) -> bool:
        """True if some request waits or runs."""
        return bool(self._table.runs)

    @property
    def next_look(self) -> float | None:
        """Seconds until a step can do something, if all requests wait for another's prefill."""
        look_at = self._scheduler.next_look
        return None if look_at is None else max(look_at - time.monotonic(), 0.0)

    @property
    def stats(self) -> EngineStats:
        """The engine's state and totals."""
        totals = {f"{name}_tokens": count for name, count in self._table.totals.items()}
        return EngineStats(
            waiting=self._scheduler.waiting_count,
            running=self._scheduler.running_count,
            held_sequences=sum(run.pages is not None for run in self._table.runs.values()),
            private_slots_used=self._private.used_count,
            requests=self._added,
            preemptions=self._scheduler.preemptions,
            yielded=self._table.yielded_count,
            **totals,
        )

    def add(
        self,
        request: Request,
        listener: RequestListener,
        *,
        on_published: OnPublished = _ignore,
        use_store: bool = True,
    ) -> int:
        """Adds a request to the queue. Returns its number within this engine.

        ``on_published`` is called after each insert that the store answered, with its pages.
        Without ``use_store`` the request has private pages only. Raises ``RequestTooLongError``,
        ``BadPromptError`` for an empty prompt or an id that the model lacks, ``BadLengthError`` for
        fewer than one token to generate, ``BadSaltError`` for a salt that is not valid Unicode, and
        ``TypeError`` for an id that is not an integer.
        """
        ids = self._checked(request.prompt_ids, request.max_tokens)
        try:
            request.cache_salt.encode()  # nothing refuses it later
        except UnicodeEncodeError as error:
            raise BadSaltError(f"the salt is not valid Unicode: {error.reason}") from error
        self._added += 1
        number = self._added

        run: RequestRun

        def published(pages: list[PageRef]) -> None:
            said = len(run.generation.output_ids)
            if said <= 1:  # other prompts may begin with these pages
                self._scheduler.published(prompt=said == 1)
            on_published(pages)

        run = RequestRun(number, request, ids, listener, published, uses_store=use_store)
        self._table.runs[number] = run
        self._scheduler.add(number, len(ids))
        return number

    def generation(self, number: int) -> Generation:
        """Returns the results so far of a request that has not ended; raises ``KeyError``."""
        return self._table.runs[number].generation

    def abort(self, number: int) -> None:
        """Ends a request, whatever its state. Does nothing if it has ended.

        The store keeps what it computed. The listener receives the end at once. If a listener calls
        this, it receives the end before the step continues.
        """
        run = self._table.runs.get(number)
        if run is None:
            return
        self._table.aborted.add(number)
        if not self._in_step:
            self._end_aborted()

    def step(self) -> bool:
        """Runs at most one batch; returns False if the engine cannot do anything now.

        Raises ``DeviceLostError`` if the device has failed for good: this process has to end then.
        """
        known = self._scheduler.running_count, len(self._table.runs)
        self._in_step = True
        try:
            parts = self._scheduler.plan(self._supply, time.monotonic())
            self._end_aborted()
            self._batches.run(parts)
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
        """Continues a prompt by ``max_tokens`` ids, or until the first of ``stop_ids``.

        Calls ``on_token`` with each id as soon as it is chosen, then ``stopped``, and ends if that
        returns True. ``on_published`` is called as in :meth:`add`. Releases everything at the end,
        also if it raises. Raises the errors of ``add``, and the error that made the request fail.
        ``DeviceLostError`` releases nothing.
        """
        request = Request(
            prompt_ids=prompt_ids,
            max_tokens=max_tokens,
            sampling=sampling,
            stop_ids=stop_ids,
        )

        def hand_on(token: int) -> None:
            on_token(token)
            if stopped():
                self.abort(number)

        outcome = RequestOutcome(hand_on)
        number = self.add(request, outcome, on_published=on_published, use_store=use_store)
        try:
            while not outcome.there:
                if not self.step():
                    time.sleep(self.next_look or 0)
        except DeviceLostError:
            raise
        except BaseException:
            if number in self._table.runs:
                self._table.release(self._table.runs[number], publish=False)
            raise
        return outcome.generation()

    def _end_aborted(self) -> None:
        while self._table.aborted:
            run = self._table.runs.get(self._table.aborted.pop())
            if run is not None:
                self._table.end(run, FinishReason.ABORT)

    def _note_speed(self, run: RequestRun) -> None:
        """Measures the prefill speed, and tells the store with the next request."""
        self._speed.note(run.generation.computed_tokens, run.seconds_of_prompt)
        if self._namespaces is not None:
            self._namespaces.state_speed(self._speed.tokens_per_second)

    def _checked(self, prompt_ids: Sequence[int], max_tokens: int) -> list[int]:
        """Returns a copy of the prompt as a list, if it can be computed; raises as `add`."""
        ids = [index(each) for each in prompt_ids]
        if not ids:
            raise BadPromptError("the prompt has no tokens")
        if max_tokens < 1:
            raise BadLengthError(f"max_tokens is {max_tokens}: it must be at least 1")
        if min(ids) < 0 or max(ids) >= self._model.vocabulary:
            last = self._model.vocabulary - 1
            raise BadPromptError(f"this model's token ids are from 0 to {last}")
        if len(ids) + max_tokens > self._longest:
            raise RequestTooLongError(len(ids), max_tokens, self._longest)
        return ids
