"""What came of a request."""

from dataclasses import dataclass, field
from typing import Any

from inference_worker.pages.ref import PageRef


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
