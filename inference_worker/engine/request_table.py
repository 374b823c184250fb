"""All requests of an engine, and the reports to their listeners."""

import logging
from collections.abc import Callable
from functools import partial
from typing import Final

from inference_worker.engine.request import FinishReason
from inference_worker.engine.request_run import RequestRun
from inference_worker.pages.sequence import SequencePages
from kvstore_client.errors import PageRecycled

_logger = logging.getLogger(__name__)

TOTALS: Final = ("prompt", "matched", "copied", "prefilled", "disk", "remote", "computed")


class RequestTable:
    """The requests that have not ended, by number. One engine thread uses it.

    An error of one request, or of its listener, ends that request only. If the device itself has
    failed, ``check_error`` raises ``DeviceLostError``, which ends the engine. It then releases and
    reports nothing.
    """

    def __init__(
        self,
        on_gone: Callable[[int], None],
        check_error: Callable[[Exception], None] = lambda _: None,
    ) -> None:
        """Calls ``on_gone`` with each request's number at its end, ``check_error`` with errors."""
        self.runs: dict[int, RequestRun] = {}
        self.totals = dict.fromkeys(TOTALS, 0)
        # Requests that end as soon as the step allows; their listeners receive no more tokens.
        self.aborted: set[int] = set()
        self.yielded_count = 0
        self._on_gone = on_gone
        self._check_error = check_error

    def opened(self, run: RequestRun, pages: SequencePages) -> None:
        """Gives a request its pages, and counts what its first pages held."""
        if run.open(pages):
            found = run.generation
            self.totals["prompt"] += found.prompt_tokens
            self.totals["matched"] += found.matched_tokens
            self.totals["copied"] += found.copied_tokens
            self.totals["prefilled"] += found.prefilled_tokens
            self.totals["disk"] += found.disk_tokens
            self.totals["remote"] += found.remote_tokens

    def yielded(self, run: RequestRun) -> None:
        """Counts a request that waits for another worker's prefill, once."""
        self.yielded_count += not run.yielded
        run.yielded = True

    def tell(self, run: RequestRun) -> FinishReason | None:
        """Reports the last token. Returns why the request ends with it, or None."""
        token = run.generation.output_ids[-1]
        try:
            run.listener.on_token(token)
        except Exception as error:  # noqa: BLE001 - fails this request only
            self.fail(run, error)
            return None
        return run.end_after(token)

    def end(self, run: RequestRun, reason: FinishReason) -> None:
        """Publishes the rest of a request, releases its pages and reports its end."""
        try:
            self.release(run, publish=True)
        except Exception as error:  # noqa: BLE001 - fails this request only
            self._check_error(error)
            _tell(partial(run.listener.on_failure, error))
        else:
            _tell(partial(run.listener.on_end, run.generation, reason))

    def fail(self, run: RequestRun, error: Exception) -> None:
        """Releases all that a request holds, and reports the error."""
        self._check_error(error)
        try:
            self.release(run, publish=False)
        except Exception as failure:
            self._check_error(failure)
            _logger.exception("release_failed")
        _tell(partial(run.listener.on_failure, error))

    def distrust(self, run: RequestRun, why: PageRecycled) -> None:
        """Makes a request compute all its ids again, without the store."""
        try:
            run.distrust(why)
        except Exception as error:  # noqa: BLE001 - fails this request only
            self.fail(run, error)

    def release(self, run: RequestRun, *, publish: bool) -> None:
        """Removes a request and releases all that it holds, without a report."""
        del self.runs[run.number]
        self._on_gone(run.number)
        try:
            run.give_back(publish=publish)
        finally:
            run.end()


def _tell(call: Callable[[], None]) -> None:
    """Makes the last call to a listener; an error that it raises is only logged."""
    try:
        call()
    except Exception:
        _logger.exception("listener_failed")
