"""What is asked of an engine, and who is told what comes of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, Protocol

from inference_worker.pages.layout import PageRef

# As vLLM has it: dividing by less overflows, and nothing but the best token would ever be drawn.
GREEDY_BELOW: Final = 1e-5


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingOptions:
    """What a request says about the choice of its tokens.

    ``temperature`` 0 is greedy, whatever the rest says. Otherwise the logits are divided by it,
    the ``top_k`` best are kept (0: all), then the fewest of them whose probabilities add up to
    ``top_p``, and one is drawn: the order of transformers and of vLLM. ``seed`` makes the draws
    the same each time; without one they differ.
    Raises ``ValueError`` for a value that makes no sense.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None

    def __post_init__(self) -> None:
        """Refuses what no distribution follows from."""
        if not 0 <= self.temperature < float("inf"):
            raise ValueError(f"a temperature is 0 or more, not {self.temperature}")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p is above 0 and at most 1, not {self.top_p}")
        if self.top_k < 0:
            raise ValueError(f"top_k is 0, for all, or more, not {self.top_k}")
        if self.seed is not None and not 0 <= self.seed < 1 << 63:
            raise ValueError(f"a seed has 63 bits, not {self.seed}")

    @property
    def is_greedy(self) -> bool:
        """Whether the best token is taken each time: then a stored next token may be used."""
        return self.temperature < GREEDY_BELOW


GREEDY: Final = SamplingOptions()


@dataclass(kw_only=True)
class Generation:
    """What came of a request, and what it took.

    ``matched_tokens`` were used in place and ``copied_tokens`` from a copy of a cached page;
    ``prefilled_tokens`` are the rest of the prompt. ``computed_tokens`` counts all positions that
    the model ran, decoding included.
    ``source_page`` is where the copy came from.
    ``recycled_pages`` counts pages that the store gave away while they were used, by a bug: then
    nothing of the store's is used, and what is above of it counts as prefilled.
    ``preemptions`` counts how often it gave way to older requests; what was matched when it went
    on is not counted above.
    ``published_pages`` are those that the answers of this request's inserts named as its own.
    ``time_to_first_token`` is in seconds, from the request to the first output id.
    ``store_seconds`` is how long the request waited for the store's answers, over all its calls.
    """

    output_ids: list[int] = field(default_factory=list)
    prompt_tokens: int
    matched_tokens: int
    copied_tokens: int = 0
    prefilled_tokens: int
    computed_tokens: int = 0
    time_to_first_token: float = 0.0
    store_seconds: float = 0.0
    matched_pages: list[PageRef]
    source_page: PageRef | None = None
    published_pages: list[PageRef] = field(default_factory=list)
    recycled_pages: int = 0
    preemptions: int = 0
    store_failure: str | None = None

    def plain(self) -> dict[str, Any]:
        """Gives all of it as JSON has it: pages as ``[extent, slot]``, times in milliseconds."""
        return {
            "output_ids": list(self.output_ids),
            "prompt_tokens": self.prompt_tokens,
            "matched_tokens": self.matched_tokens,
            "copied_tokens": self.copied_tokens,
            "prefilled_tokens": self.prefilled_tokens,
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


class RequestOutcome:
    """A listener that keeps the end or the failure of a request."""

    def __init__(self, on_token: Callable[[int], None]) -> None:
        """Hands each token on."""
        self._on_token = on_token
        self._generation: Generation | None = None
        self._error: Exception | None = None

    @property
    def there(self) -> bool:
        """Whether the request has come to its end."""
        return self._generation is not None or self._error is not None

    def on_token(self, token: int) -> None:
        """Hands it on."""
        self._on_token(token)

    def on_end(self, generation: Generation, reason: FinishReason) -> None:
        """Keeps what came of it."""
        del reason
        self._generation = generation

    def on_failure(self, error: Exception) -> None:
        """Keeps why it failed."""
        self._error = error

    def generation(self) -> Generation:
        """Gives what came of it; raises what made it fail."""
        if self._error is not None:
            raise self._error
        assert self._generation is not None  # it is there
        return self._generation
