"""What is asked of an engine, and who is told what comes of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from inference_worker.engine.generation import Generation
from inference_worker.engine.sampling_options import GREEDY, SamplingOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A prompt to continue by ``max_tokens`` ids, or to the first of ``stop_ids``.

    With ``cache_prefix`` off it is neither matched nor inserted, as is a prompt of fewer than
    ``min_cache_tokens`` ids. Requests of different ``cache_salt`` share nothing. Where requests
    are traced, ``traceparent`` names whose part it is.
    """

    prompt_ids: Sequence[int]
    max_tokens: int
    sampling: SamplingOptions = GREEDY
    stop_ids: frozenset[int] = frozenset()
    cache_prefix: bool = True
    min_cache_tokens: int = 0
    cache_salt: str = ""
    traceparent: str = ""


class FinishReason(StrEnum):
    """Why a request got no more tokens: one of its stop ids, all it asked for, or its abort."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


class RequestListener(Protocol):
    """Is told of one request, on the engine's thread; the last call is the end or the failure.

    Each may add requests and abort any. What ``on_token`` raises fails this request alone.
    """

    def on_token(self, token: int) -> None:
        """Takes the next id, as soon as it is chosen."""
        ...

    def on_end(self, generation: Generation, reason: FinishReason) -> None:
        """Takes all that came of it; everything it held is given back."""
        ...

    def on_failure(self, error: Exception) -> None:
        """Takes what made it fail; everything it held is given back."""
        ...
