"""An engine's prefill speed, measured from the steps of its scheduler."""

import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from kvstore_vllm.scheduler.tracked_requests import EngineRequest

# A step of fewer prompt tokens measures the fixed cost of a step rather than the speed.
LEAST_TOKENS: Final = 128
# The share of a measured step's tokens that are a prompt's.
LEAST_SHARE: Final = 0.9
# The speed is that of the latest steps, and known once they have so many tokens.
STEPS: Final = 32
KNOWN_TOKENS: Final = 1_024


class _Measured(NamedTuple):
    """The tokens a second of one step, and its prompt tokens."""

    speed: float
    tokens: int


@dataclass(eq=False, slots=True)
class _Step:
    """A scheduled step, which ends as the output of one of its requests arrives.

    ``prefill_tokens`` is 0 for a step that measures nothing. ``later_tokens`` are those of the
    request in later steps.
    """

    request: EngineRequest
    begun_at: float
    prefill_tokens: int
    later_tokens: int = 0

    @property
    def has_ended(self) -> bool:
        """True once vLLM took in the step's output."""
        return self.request.num_in_flight_tokens <= self.later_tokens


class EngineSpeed:
    """Measures how many prompt tokens an engine computes in a second. One thread uses it.

    The speed is the median of the latest steps, weighted by their tokens, so neither a short
    step nor a stalled one counts much. ``state`` is called with each new speed, once it is known.

    vLLM may schedule a step before the one before it ended. So a step's time begins as it is
    scheduled or, if that is later, as the step before it ends.
    """

    def __init__(
        self, state: Callable[[float], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._state = state
        self._clock = clock
        self._requests: dict[str, EngineRequest] = {}
        self._open: deque[_Step] = deque()
        self._ended_at = 0.0
        self._measured: deque[_Measured] = deque(maxlen=STEPS)

    def arrived(self, request: EngineRequest) -> None:
        """Takes a request, whose steps are measured until it ends."""
        self._requests[request.request_id] = request

    def scheduled(
        self, tokens: Mapping[str, int], finished: Collection[str], *, measured: bool = True
    ) -> None:
        """Begins a step, before vLLM adds its ``tokens`` to its requests' computed ones.

        ``finished`` are the requests that ended since the last step. ``measured`` is False for a
        step that does more than compute.
        """
        self.output_arrived()
        for request_id in finished:
            self._requests.pop(request_id, None)
        for step in self._open:
            step.later_tokens += tokens.get(step.request.request_id, 0)
        known = self._requests
        found = [(count, known[each]) for each, count in tokens.items() if each in known]
        if not found:
            return
        _, largest = max(found, key=lambda each: each[0])
        prefill = sum(
            count for count, each in found if each.num_computed_tokens < each.num_prompt_tokens
        )
        enough = max(LEAST_TOKENS, LEAST_SHARE * sum(tokens.values()))
        measures = measured and prefill >= enough
        self._open.append(_Step(largest, self._clock(), prefill if measures else 0))

    def output_arrived(self) -> None:
        """Ends the steps whose output vLLM has taken in."""
        ended = [number for number, step in enumerate(self._open) if step.has_ended]
        if not ended:
            return
        now = self._clock()
        steps = [self._open.popleft() for _ in range(ended[-1] + 1)]
        # The time of each of several is unknown. An aborted request's step never ends.
        if len(steps) == 1 and steps[0].prefill_tokens:
            self._note(steps[0].prefill_tokens, now - max(steps[0].begun_at, self._ended_at))
        self._ended_at = now

    def _note(self, tokens: int, seconds: float) -> None:
        if seconds <= 0:
            return
        self._measured.append(_Measured(tokens / seconds, tokens))
        total = sum(each.tokens for each in self._measured)
        if total < KNOWN_TOKENS:
            return
        slower = 0
        for each in sorted(self._measured):
            slower += each.tokens
            if 2 * slower >= total:
                self._state(each.speed)
                return
