"""One request while it runs: what is computed, chosen and told to the store."""

from collections.abc import Callable, Sequence
from typing import Final

import torch

from inference_worker.block_table import PageRef
from inference_worker.generation import Generation
from inference_worker.model import PagedModel
from inference_worker.page_pool import PagePool
from inference_worker.sampling import Choice, Sampler
from inference_worker.sequence_pages import SequencePages
from inference_worker.step import Step, StepPart
from kvstore_client.errors import PageRecycled

# Tokens of a prefill computed at once: what is complete is published before the next.
CHUNK_TOKENS: Final = 512

OnPublished = Callable[[list[PageRef]], None]


class RequestRun:
    """Gives a prompt's next tokens one after the other. One engine thread uses it."""

    def __init__(
        self,
        model: PagedModel,
        pool: PagePool,
        pages: SequencePages,
        prompt_ids: Sequence[int],
        sampler: Sampler,
        *,
        chunk_tokens: int,
        on_published: OnPublished,
    ) -> None:
        """Start behind what ``pages`` have; they stay the caller's."""
        self._model = model
        self._pool = pool
        self._pages = pages
        self._ids = list(prompt_ids)
        self._sampler = sampler
        self._chunk_tokens = chunk_tokens
        self._on_published = on_published
        self._computed = pages.matched_tokens + pages.copied_tokens
        # What the model likes best after the prompt and after all that was computed.
        self._next_tokens: dict[int, int] = {}
        self.generation = Generation(
            prompt_tokens=len(self._ids),
            matched_tokens=pages.matched_tokens,
            copied_tokens=pages.copied_tokens,
            prefilled_tokens=len(self._ids) - self._computed,
            matched_pages=pages.matched_pages,
            source_page=pages.source_page,
            store_failure=None if pages.failure is None else str(pages.failure),
        )

    @property
    def store_seconds(self) -> float:
        """How long it waited for the store so far."""
        return self.generation.store_seconds + self._pages.store_seconds

    def next(self) -> int:
        """Choose the next token, from what the store knows or by computing what is missing.

        Raises ``PageRecycled`` where it would be chosen from pages that the store gave away:
        :meth:`start_over`, then ask again.
        """
        said = self.generation.output_ids
        self._ids += said[-1:]
        known = None if said else self._pages.next_token
        choice = self._choose() if known is None else Choice(known, known)
        said.append(choice.token)
        return choice.token

    def start_over(self, pages: SequencePages, why: PageRecycled) -> None:
        """Go on behind the tokens chosen so far, computing all of them anew on other pages.

        Each of them was chosen before the store's pages were found recycled, and holds.
        """
        found = self.generation
        found.store_seconds += self._pages.store_seconds
        self._pages = pages
        self._computed = 0
        # The last one is not taken up before it is asked for what follows it.
        del self._ids[found.prompt_tokens + max(len(found.output_ids) - 1, 0) :]
        found.matched_tokens = found.copied_tokens = 0
        found.matched_pages, found.source_page = [], None
        found.prefilled_tokens = found.prompt_tokens
        found.recycled_pages += len(why.pages)
        found.store_failure = str(why)

    def finish(self) -> None:
        """Tell the store the rest: the last page, however full, and the next tokens."""
        if self.generation.computed_tokens:
            published = self._pages.finish(self._ids, self._computed, self._next_tokens)
            self._note(published)
        self.generation.store_seconds += self._pages.store_seconds

    def _choose(self) -> Choice:
        """Compute what is missing and choose from the last logits."""
        choice = self._sampler.choose(self._advance())
        # The choice waited for the device: all that it came of was read before this.
        self._pages.require_current()
        self._computed = len(self._ids)
        prompt = self.generation.prompt_tokens
        # Never a sample: whoever finds it decodes greedily.
        best = {self._computed: choice.argmax}
        kept = {end: each for end, each in self._next_tokens.items() if end == prompt}
        self._next_tokens = kept | best
        return choice

    def _advance(self) -> torch.Tensor:
        """Compute from where it stands, in chunks; gives logits ``[vocabulary]``.

        Publishes what was computed before each chunk. What the last one completes waits for the
        next call, or the end: whoever asked waits for a token, and not for the store.
        """
        ids, pages = self._ids, self._pages
        pages.ensure(len(ids))
        logits = torch.empty(0)
        for start in range(self._computed, len(ids), self._chunk_tokens):
            if self.generation.computed_tokens:
                self._note(pages.publish(ids, start))
            end = min(start + self._chunk_tokens, len(ids))
            last = end == len(ids)
            part = StepPart(table=pages.table, start=start, count=end - start, wants_logits=last)
            step = Step(self._pool, (part,))
            logits = self._model.forward(step, torch.tensor(ids[start:end]))
            self.generation.computed_tokens += step.token_count
        return logits[0]

    def _note(self, published: list[PageRef]) -> None:
        if published:
            self.generation.published_pages += published
            self._on_published(published)
