"""An engine as the workloads drive it: one request alone, or many at once."""

import time
from collections.abc import Sequence
from typing import NamedTuple

from inference_worker.engine.engine import Engine
from inference_worker.engine.request import FinishReason, Generation, Request
from kvstore_client import Client
from support.workloads.figures import Sample

FLUSH_SECONDS = 30.0
# The wait for another's prefill if the engine does not say how long.
LOOK_SECONDS = 0.001


class Batch(NamedTuple):
    """Requests that were made at once, and the time that all of them took."""

    seconds: float
    samples: list[Sample]


class Driver:
    """Makes requests of one engine on this thread. Times count from the request's making.

    Releases reach the store between two requests, untimed.
    """

    def __init__(self, engine: Engine, client: Client | None = None) -> None:
        self._engine = engine
        self._client = client

    def one(self, ids: Sequence[int], max_tokens: int) -> Sample:
        """Makes one request alone."""
        return self.many([ids], max_tokens).samples[0]

    def many(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> Batch:
        """Makes requests at once and waits for all of them.

        Raises the error of a failed one, and ``RuntimeError`` if a release did not reach the store.
        """
        engine = self._engine
        begin = time.perf_counter()
        watches = [_Watch() for _ in prompts]
        for ids, watch in zip(prompts, watches, strict=True):
            engine.add(Request(prompt_ids=ids, max_tokens=max_tokens), watch)
        while engine.has_work:
            if not engine.step():
                time.sleep(engine.next_look or LOOK_SECONDS)
        seconds = time.perf_counter() - begin
        if self._client is not None and not self._client.flush(FLUSH_SECONDS):
            raise RuntimeError("a release did not reach the store")
        return Batch(seconds, [watch.sample(begin) for watch in watches])


class _Watch:
    """Records the times of a request's first token and of its end."""

    def __init__(self) -> None:
        self._first = 0.0
        self._end = 0.0
        self._found: Generation | None = None
        self._error: Exception | None = None

    def on_token(self, token: int) -> None:
        del token
        self._first = self._first or time.perf_counter()

    def on_end(self, generation: Generation, reason: FinishReason) -> None:
        del reason
        self._end = time.perf_counter()
        self._found = generation

    def on_failure(self, error: Exception) -> None:
        self._error = error

    def sample(self, begin: float) -> Sample:
        """Returns the result. Raises the request's error if it failed."""
        if self._error is not None:
            raise self._error
        found = self._found
        assert found is not None  # the request ended and did not fail
        return Sample(
            first_token_s=self._first - begin,
            whole_s=self._end - begin,
            output_ids=found.output_ids,
            prompt=found.prompt_tokens,
            matched=found.matched_tokens,
            copied=found.copied_tokens,
            prefilled=found.prefilled_tokens,
            store_s=found.store_seconds,
            store_failure=found.store_failure,
        )
