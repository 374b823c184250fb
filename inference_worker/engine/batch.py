"""One batch of an engine: computes its parts, chooses tokens, reports and publishes."""

from collections.abc import Callable

import torch

from inference_worker.attention.step import Step, StepPart
from inference_worker.engine.request import FinishReason
from inference_worker.engine.request_run import RequestRun
from inference_worker.engine.request_table import RequestTable
from inference_worker.engine.sampling import choose_all
from inference_worker.engine.scheduler import Part, Scheduler
from inference_worker.model.model import PagedModel
from inference_worker.pages.pool import PagePool
from inference_worker.pages.sequence import StepOf
from kvstore import tracing
from kvstore_client import Namespace, StoreStep
from kvstore_client.errors import PageRecycled


class BatchRunner:
    """Runs the parts that a scheduler planned. One engine thread uses it.

    An error of one request ends that request; an error of the whole batch ends all its requests.
    Each request releases what it held.
    """

    def __init__(
        self,
        model: PagedModel,
        pool: PagePool,
        scheduler: Scheduler,
        table: RequestTable,
        *,
        wait_for_device: Callable[[], None],
        on_first_token: Callable[[RequestRun], None],
    ) -> None:
        """Calls ``on_first_token`` before each request's first token is reported.

        ``wait_for_device`` returns when all work that the engine queued is done.
        """
        self._wait_for_device = wait_for_device
        self._model = model
        self._pool = pool
        self._scheduler = scheduler
        self._table = table
        self._on_first_token = on_first_token

    def run(self, parts: list[Part]) -> None:
        """Computes the parts of requests that have not ended, and reports the results."""
        batch = self._batch(parts)
        if batch:
            self._compute(batch)

    def _batch(self, parts: list[Part]) -> list[tuple[RequestRun, Part, StepPart]]:
        """Returns the parts of requests that have not ended, ready to be computed."""
        batch = []
        for part in parts:
            run = self._table.runs.get(part.number)
            if run is None:
                continue
            try:
                batch.append((run, part, run.part(part.token_count)))
            except PageRecycled as error:
                self._distrust(run, error)
            except Exception as error:  # noqa: BLE001 - fails this request only
                self._table.fail(run, error)
        return batch

    def _compute(self, batch: list[tuple[RequestRun, Part, StepPart]]) -> None:
        """Runs a batch, reports its tokens, then publishes its pages to the store."""
        try:
            ids = [id_ for run, part, _ in batch for id_ in run.next_ids(part.token_count)]
            step = Step(self._pool, tuple(step_part for _, _, step_part in batch))
            logits = self._model.forward(step, torch.tensor(ids))
        except Exception as error:  # noqa: BLE001 - fails the requests of the step
            for run, _, _ in batch:
                self._table.fail(run, error)
            return
        for run, part, _ in batch:
            run.advance(part.token_count)
            self._scheduler.computed(part)
            self._table.totals["computed"] += part.token_count
        through = [run for run, _, step_part in batch if step_part.wants_logits]
        ended = self._choose(through, logits) if through else {}
        for run, _, _ in batch:
            reason = ended.get(run.number)
            if reason is not None and self._goes_on(run):
                self._table.end(run, reason)
        self._publish([run for run, _, _ in batch if self._goes_on(run)])

    def _choose(self, runs: list[RequestRun], logits: torch.Tensor) -> dict[int, FinishReason]:
        """Chooses and reports the next token of each request. Returns who ended, and why.

        Waits for the device once, then checks the generation of each page that a request read.
        Chooses no token from pages that the store recycled.
        """
        try:
            self._wait_for_device()
        except Exception as error:  # noqa: BLE001 - fails the requests of the step
            for run in runs:
                self._table.fail(run, error)
            return {}
        current = [self._is_current(run) for run in runs]
        runs = [run for run, holds in zip(runs, current, strict=True) if holds]
        try:
            rows = logits if all(current) else logits[torch.tensor(current, device=logits.device)]
            choices = choose_all(rows, [run.sampler for run in runs]) if runs else []
        except Exception as error:  # noqa: BLE001 - fails the requests of the step
            for run in runs:
                self._table.fail(run, error)
            return {}
        reasons = {}
        for run, choice in zip(runs, choices, strict=True):
            if run.number in self._table.aborted:  # by another request's listener
                continue
            if isinstance(choice, Exception):
                self._table.fail(run, choice)
                continue
            run.chosen(choice)
            self._scheduler.extended(run.number)
            if len(run.generation.output_ids) == 1:
                self._on_first_token(run)
            reasons[run.number] = self._table.tell(run)
        return {number: reason for number, reason in reasons.items() if reason is not None}

    def _is_current(self, run: RequestRun) -> bool:
        try:
            run.require_current()
        except PageRecycled as error:
            self._distrust(run, error)
        except Exception as error:  # noqa: BLE001 - fails this request only
            self._table.fail(run, error)
        else:
            return True
        return False

    def _goes_on(self, run: RequestRun) -> bool:
        return run.number in self._table.runs and run.number not in self._table.aborted

    def _publish(self, runs: list[RequestRun]) -> None:
        """Publishes the complete pages of requests, in one call for each namespace."""
        if len(runs) == 1:
            self._try(runs[0], runs[0].publish)
            return
        steps: dict[Namespace, StoreStep] = {}

        def step_of(namespace: Namespace) -> StoreStep:
            return steps.setdefault(namespace, StoreStep(namespace))

        reports = [(run, self._add_to(step_of, run)) for run in runs]
        try:
            for each in steps.values():
                with tracing.span("save", sequences=len(reports)):
                    each.run()
        except Exception as error:  # noqa: BLE001 - fails the requests of the step
            for run, report in reports:
                if report is not None:
                    self._table.fail(run, error)
            return
        for run, report in reports:
            if report is not None and self._goes_on(run):
                self._try(run, report)

    def _add_to(self, step_of: StepOf, run: RequestRun) -> Callable[[], None] | None:
        try:
            return run.publish_in(step_of)
        except Exception as error:  # noqa: BLE001 - fails this request only
            self._table.fail(run, error)
            return None

    def _try(self, run: RequestRun, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:  # noqa: BLE001 - fails this request only
            self._table.fail(run, error)

    def _distrust(self, run: RequestRun, why: PageRecycled) -> None:
        self._table.distrust(run, why)
        if run.number in self._table.runs:
            self._scheduler.restart(run.number)
