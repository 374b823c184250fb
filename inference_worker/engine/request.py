"""Requests, their listeners and their results. Needs no torch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, NamedTuple, Protocol

from inference_worker.pages.layout import PageRef

# As in vLLM: dividing by less overflows, and only the best token would ever be drawn.
GREEDY_BELOW: Final = 1e-5


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingOptions:
    """The rules by which a request chooses its tokens.

    ``temperature`` 0 is greedy, and ignores the other fields. Otherwise the logits are divided by
    the temperature. The ``top_k`` best are kept (0: all), then the fewest whose probabilities add
    up to ``top_p``, and one is drawn. This is the order of transformers and of vLLM. ``seed`` makes
    the draws repeatable; without a seed they differ. Raises ``ValueError`` for a value out of
    range.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None

    def __post_init__(self) -> None:
        """Refuses values from which no distribution follows."""
        if not 0 <= self.temperature < float("inf"):
            raise ValueError(f"temperature is {self.temperature}: it must be 0 or more")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p is {self.top_p}: it must be above 0 and at most 1")
        if self.top_k < 0:
            raise ValueError(f"top_k is {self.top_k}: it must be 0 (all) or more")
        if self.seed is not None and not 0 <= self.seed < 1 << 63:
            raise ValueError(f"seed is {self.seed}: it must be from 0 to 2**63 - 1")

    @property
    def is_greedy(self) -> bool:
        """True if the best token is always chosen: then a stored next token may be used."""
        return self.temperature < GREEDY_BELOW


GREEDY: Final = SamplingOptions()


class ReusedTokens(NamedTuple):
    """The number of a prompt's tokens that were matched or copied, and of those by their source.

    The store loaded ``disk`` tokens from its disk for this request, and ``remote`` tokens from the
    store that hosts share. It had the rest in memory.
    """

    total: int = 0
    disk: int = 0
    remote: int = 0

    @property
    def memory(self) -> int:
        """The tokens that were in memory."""
        return self.total - self.disk - self.remote

    def at_most(self, total: int) -> "ReusedTokens":
        """Returns the counts for the first ``total`` tokens; remote tokens are the last."""
        total = min(total, self.total)
        disk = min(self.disk, total)
        return ReusedTokens(total, disk, min(self.remote, total - disk))


@dataclass(kw_only=True)
class Generation:
    """The results of a request, and what it cost.

    ``matched_tokens`` were used in place and ``copied_tokens`` from a copy of a cached page;
    ``prefilled_tokens`` are the rest of the prompt. ``disk_tokens`` and ``remote_tokens`` are those
    of the matched ones that the store loaded for the request: from its disk, and from the store
    that hosts share. ``computed_tokens`` counts all positions that
    the model ran, including decoding. ``source_page`` is the page that was copied.
    ``recycled_pages`` counts pages that the store, by a bug, gave to others while they were in use.
    Such a request then uses nothing of the store, and its matched and copied tokens count as
    prefilled. ``preemptions`` counts how often it gave way to older requests; tokens matched
    afterwards are not counted above. ``published_pages`` are the pages that the answers to its
    inserts named as its own. ``time_to_first_token`` is in seconds, from the request to the first
    output id. ``store_seconds`` is the time spent waiting for the store, over all calls.
    """

    output_ids: list[int] = field(default_factory=list)
    prompt_tokens: int
    matched_tokens: int
    copied_tokens: int = 0
    prefilled_tokens: int
    disk_tokens: int = 0
    remote_tokens: int = 0
    computed_tokens: int = 0
    time_to_first_token: float = 0.0
    store_seconds: float = 0.0
    matched_pages: list[PageRef]
    source_page: PageRef | None = None
    published_pages: list[PageRef] = field(default_factory=list)
    recycled_pages: int = 0
    preemptions: int = 0
    store_failure: str | None = None

    @property
    def reused(self) -> ReusedTokens:
        """The tokens of the prompt that were not computed, by their source."""
        total = self.matched_tokens + self.copied_tokens
        return ReusedTokens(total, self.disk_tokens, self.remote_tokens)

    def plain(self) -> dict[str, Any]:
        """Returns all fields for JSON: pages as ``[extent, slot]``, times in milliseconds."""
        return {
            "output_ids": list(self.output_ids),
            "prompt_tokens": self.prompt_tokens,
            "matched_tokens": self.matched_tokens,
            "copied_tokens": self.copied_tokens,
            "prefilled_tokens": self.prefilled_tokens,
            "disk_tokens": self.disk_tokens,
            "remote_tokens": self.remote_tokens,
            "computed_tokens": self.computed_tokens,
            "ttft_ms": self.time_to_first_token * 1e3,
            "store_ms": self.store_seconds * 1e3,
            "matched_pages": [list(page) for page in self.matched_pages],
            "source_page": None if self.source_page is None else list(self.source_page),
            "published_pages": [list(page) for page in self.published_pages],
            "recycled_pages": self.recycled_pages,
            "preemptions": self.preemptions,
            "store_failure": self.store_failure,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A prompt to continue by ``max_tokens`` ids, or until the first of ``stop_ids``.

    With ``cache_prefix`` off the prompt is neither matched nor inserted. The same is true of a
    prompt of fewer than ``min_cache_tokens`` ids. Requests of different ``cache_salt`` share
    nothing. If requests are traced, ``traceparent`` names the parent span.
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
    """Why a request ended: one of its stop ids, its ``max_tokens``, or its abort."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


class RequestListener(Protocol):
    """Receives the events of one request, on the engine's thread. The last is its end or failure.

    Each method may add requests and abort any. An error that ``on_token`` raises ends this request
    only.
    """

    def on_token(self, token: int) -> None:
        """Receives the next id, as soon as it is chosen."""
        ...

    def on_end(self, generation: Generation, reason: FinishReason) -> None:
        """Receives the results; everything that the request held is released."""
        ...

    def on_failure(self, error: Exception) -> None:
        """Receives the error; everything that the request held is released."""
        ...


class RequestOutcome:
    """A listener that keeps the end or the failure of a request."""

    def __init__(self, on_token: Callable[[int], None]) -> None:
        """Passes each token to ``on_token``."""
        self._on_token = on_token
        self._generation: Generation | None = None
        self._error: Exception | None = None

    @property
    def there(self) -> bool:
        """True if the request has ended."""
        return self._generation is not None or self._error is not None

    def on_token(self, token: int) -> None:
        """Passes the token on."""
        self._on_token(token)

    def on_end(self, generation: Generation, reason: FinishReason) -> None:
        """Keeps the results."""
        del reason
        self._generation = generation

    def on_failure(self, error: Exception) -> None:
        """Keeps the error."""
        self._error = error

    def generation(self) -> Generation:
        """Returns the results; raises the error that made the request fail."""
        if self._error is not None:
            raise self._error
        assert self._generation is not None  # it is there
        return self._generation
