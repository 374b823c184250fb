"""One request while an engine has it: its ids, its pages and its results."""

import time
from collections.abc import Callable
from typing import Final

from inference_worker.attention.step import StepPart
from inference_worker.engine.request import FinishReason, Generation, Request, RequestListener
from inference_worker.engine.sampling import SampledToken, Sampler
from inference_worker.pages.layout import PageRef
from inference_worker.pages.sequence import SequencePages, StepOf
from kvstore import tracing
from kvstore_client.errors import PageRecycled

OnPublished = Callable[[list[PageRef]], None]


class RequestRun:
    """A request's ids and, while it runs, its pages. One engine thread uses it.

    A preempted request releases its pages and continues later on other pages, after all ids that it
    has by then.
    """

    def __init__(
        self,
        number: int,
        request: Request,
        prompt_ids: list[int],
        listener: RequestListener,
        on_published: OnPublished,
        *,
        uses_store: bool = True,
    ) -> None:
        """Starts with the checked prompt, holding nothing."""
        self.number: Final = number
        self.request: Final = request
        self.listener: Final = listener
        self.ids = prompt_ids
        self.pages: SequencePages | None = None
        # Also off once the store turned out to recycle pages in use.
        self.uses_store = uses_store
        self.generation = Generation(
            prompt_tokens=len(prompt_ids),
            matched_tokens=0,
            prefilled_tokens=len(prompt_ids),
            matched_pages=[],
        )
        # Whether it waited for another worker's prefill or for its namespace.
        self.yielded = False
        self._on_published = on_published
        self.sampler: Final = Sampler(request.sampling)
        self._computed = 0
        self._computed_here = 0
        # The argmax after the prompt and after all computed ids, by the number of ids before it.
        self._next_tokens: dict[int, int] = {}
        self._added = time.perf_counter()
        # When it first had pages, and how long it had waited for the store by then.
        self._began: float | None = None
        self._waited_before = 0.0
        # The spans of the whole request, and from its first pages to its first token. None if not
        # traced.
        self.span: Final = tracing.begin(
            "request", remote=request.traceparent, prompt_tokens=len(prompt_ids)
        )
        self._prefill: tracing.Span = None

    @property
    def longest(self) -> int:
        """Tokens that its pages can come to hold: the last token is not computed."""
        return self.generation.prompt_tokens + self.request.max_tokens - 1

    @property
    def shares_cache(self) -> bool:
        """True if the request is matched and inserted; otherwise the store only gives it slots."""
        enough = self.generation.prompt_tokens >= self.request.min_cache_tokens
        return self.request.cache_prefix and enough

    @property
    def computed(self) -> int:
        """The number of token ids whose KV the pages hold."""
        return self._computed

    @property
    def seconds_of_prompt(self) -> float:
        """Seconds from its first pages to its first token, without the waits for the store."""
        first = self._added + self.generation.time_to_first_token
        waited = self.generation.store_seconds - self._waited_before
        if self.pages is not None:
            waited += self.pages.store_seconds
        return first - (self._began or first) - waited

    def open(self, pages: SequencePages) -> bool:
        """Continues after the ids that ``pages`` hold.

        Returns whether these are its first pages.
        """
        self.pages = pages
        self._computed = pages.matched_tokens + pages.copied_tokens
        self._computed_here = 0
        found = self.generation
        if pages.failure is not None:
            found.store_failure = str(pages.failure)
        if self._began is not None:
            return False
        self._began = time.perf_counter() - pages.store_seconds
        self._waited_before = found.store_seconds
        found.matched_tokens, found.copied_tokens = pages.matched_tokens, pages.copied_tokens
        found.prefilled_tokens = found.prompt_tokens - self._computed
        found.disk_tokens, found.remote_tokens = pages.loaded_tokens
        found.matched_pages, found.source_page = pages.matched_pages, pages.source_page
        self._prefill = tracing.begin(
            "prefill",
            self.span,
            matched_tokens=found.matched_tokens,
            copied_tokens=found.copied_tokens,
            prefilled_tokens=found.prefilled_tokens,
        )
        return True

    def part(self, count: int) -> StepPart:
        """Returns the next ``count`` ids as a part of a step; only the last id's logits are wanted.

        Raises ``PageRecycled`` if the source was recycled before its copy was complete.
        """
        assert self.pages is not None  # it runs
        end = self._computed + count
        self.pages.ensure(end)
        return StepPart(
            table=self.pages.table,
            start=self._computed,
            count=count,
            wants_logits=end == len(self.ids),
        )

    def next_ids(self, count: int) -> list[int]:
        """Returns the next ``count`` ids to compute."""
        return self.ids[self._computed : self._computed + count]

    def advance(self, count: int) -> None:
        """Notes that the next ``count`` ids were computed."""
        self._computed += count
        self._computed_here += count
        self.generation.computed_tokens += count

    def require_current(self) -> None:
        """Raises ``PageRecycled`` if the store gave some of the pages that were read to others.

        Must be called after the device's work on the pages is done.
        """
        assert self.pages is not None  # it runs
        self.pages.require_current()

    def chosen(self, choice: SampledToken) -> None:
        """Adds the next token, chosen from the last id's logits."""
        prompt = self.generation.prompt_tokens
        # Never a sampled token: a request that finds it decodes greedily.
        best = {self._computed: choice.argmax}
        kept = {end: each for end, each in self._next_tokens.items() if end == prompt}
        self._next_tokens = kept | best
        self.say(choice.token)

    def say(self, token: int) -> None:
        """Adds a token that was chosen, or that the store knew."""
        said = self.generation.output_ids
        if not said:
            self.generation.time_to_first_token = time.perf_counter() - self._added
            self._end_prefill()
        said.append(token)
        self.ids.append(token)

    def end_after(self, token: int) -> FinishReason | None:
        """Returns why ``token``, the last one, ends the request; None if it does not."""
        if token in self.request.stop_ids:
            return FinishReason.STOP
        said = len(self.generation.output_ids)
        return FinishReason.LENGTH if said == self.request.max_tokens else None

    def publish(self) -> None:
        """Publishes the complete pages and, at the prompt's end, the next token."""
        if self.pages is not None and self._computed_here:
            with tracing.inside(self.span):
                token = self._token_after_prompt()
                self._note(self.pages.publish(self.ids, self._computed, token))

    def publish_in(self, step_of: StepOf) -> Callable[[], None] | None:
        """Adds what :meth:`publish` inserts to a step of the store; returns None if nothing.

        Otherwise returns a function that reports the pages once the step ran.
        """
        if self.pages is None or not self._computed_here:
            return None
        token = self._token_after_prompt()
        pages = self.pages.add_to(step_of, self.ids, self._computed, token)
        return None if pages is None else lambda: self._note(pages())

    def _token_after_prompt(self) -> int | None:
        """Returns the argmax after the computed ids if they are the prompt."""
        at_prompt = self._computed == self.generation.prompt_tokens
        return self._next_tokens.get(self._computed) if at_prompt else None

    def give_back(self, *, publish: bool) -> None:
        """Releases all pages; with ``publish`` it first publishes the rest of what was computed.

        The rest is the last page, which may be partial, and the next tokens.
        """
        pages = self.pages
        if pages is None:
            return
        try:
            # Otherwise its first page may lack the tokens of the source.
            if publish and self._computed_here:
                ends = {end: t for end, t in self._next_tokens.items() if end <= self._computed}
                with tracing.inside(self.span):
                    self._note(pages.finish(self.ids, self._computed, ends))
        finally:
            self.generation.store_seconds += pages.store_seconds
            self.pages = None
            self._computed = 0
            pages.close()

    def end(self) -> None:
        """Ends its trace, if it has one, whatever the outcome."""
        self._end_prefill()
        if self.span is not None:
            self.span.set_attribute("output_tokens", len(self.generation.output_ids))
            self.span.end()

    def distrust(self, why: PageRecycled) -> None:
        """Releases all pages, and computes all ids again without the store.

        Tokens chosen so far stay valid: each was chosen before the store's pages were found
        recycled.
        """
        self.give_back(publish=False)
        self.uses_store = False
        found = self.generation
        found.matched_tokens = found.copied_tokens = 0
        found.disk_tokens = found.remote_tokens = 0
        found.matched_pages, found.source_page = [], None
        found.prefilled_tokens = found.prompt_tokens
        found.recycled_pages += len(why.pages)
        found.store_failure = str(why)

    def _end_prefill(self) -> None:
        if self._prefill is not None:
            self._prefill.end()
            self._prefill = None

    def _note(self, published: list[PageRef]) -> None:
        if published:
            self.generation.published_pages += published
            self._on_published(published)
