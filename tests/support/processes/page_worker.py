"""What a worker of the multi-process tests does with prompts: every page it meets is checked."""

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import count
from multiprocessing.synchronize import Barrier

from kvstore_client import Acquired, Client, Namespace, PageRef, errors
from pages.stamped_pages import LAYOUT, Stamp, WrongPage, memfd_mappings, page_count, stamps_of
from processes.page_holder import PageHolder

# Between two looks at whether there is a store at all, or what somebody else computes.
LOOK_SECONDS = 0.05
# What a worker did: "looks", "hits", "misses", "published" pages, and failures by their class.
Tally = Counter[str]


class PageWorker(PageHolder):
    """The commands of one process; besides whole requests those of a holder."""

    def __init__(
        self,
        client: Client,
        namespace: Namespace,
        *,
        told: Callable[[], bool],
        barrier: Barrier | None = None,
    ) -> None:
        super().__init__(client, namespace, told=told, barrier=barrier)
        self._client = client
        self._views: list[memoryview] = []

    def write(self, tokens: list[int], *, in_parts: bool = False) -> Tally:
        """Does as a worker does with a prompt: match, write the rest, insert, release."""
        tally = Tally(looks=1)
        total = page_count(tokens)
        with self._namespace.acquire(tokens, total_page_count=total) as acquired:
            tally.update([_class_of(acquired.failure)] if acquired.failure else [])
            tally.update(["hits" if acquired.match.page_count else "misses"])
            seen = stamps_of(self._namespace, tokens, acquired.match.pages)
            if self._write(tokens, acquired.reservation):
                self._publish(tokens, acquired, tally, step=1 if in_parts else total)
            self._see_again(tokens, acquired, seen)
        return tally

    def write_once(self, tokens: list[int]) -> Tally:
        """Do as write, page by page, after waiting, holding nothing, for whoever computes more."""
        tally = Tally()
        total = page_count(tokens)
        while True:
            with self._namespace.acquire(
                tokens, total_page_count=total, yield_to_in_flight=True
            ) as acquired:
                assert acquired.failure is None, acquired.failure
                if acquired.in_flight is None:
                    stamps_of(self._namespace, tokens, acquired.match.pages)
                    if self._write(tokens, acquired.reservation):
                        self._publish(tokens, acquired, tally, step=1)
                    return tally
                assert not acquired.holds
            tally["yields"] += 1
            time.sleep(LOOK_SECONDS)

    def churn(self, prompts: list[list[int]], rounds: int) -> Tally:
        """Writes all prompts, so often, each time in another order; zero: until told to end."""
        tally = Tally()
        for tokens in self._rounds(prompts, rounds):
            tally += self.write(tokens)
        return tally

    def read(self, prompts: list[list[int]], seed: int) -> Tally:
        """Match prompts until told to end, cut anywhere, by the seed; check each match twice."""
        chosen = random.Random(seed)
        tally = Tally()
        while not self._told():
            tokens = chosen.choice(prompts)
            tokens = tokens[: chosen.randint(LAYOUT.page_tokens + 1, len(tokens))]
            with self._namespace.match(tokens) as match:
                assert match.failure is None, match.failure
                assert len(tokens) > match.token_count == match.page_count * LAYOUT.page_tokens
                tally.update(["looks", "hits" if match.page_count else "misses"])
                seen = stamps_of(self._namespace, tokens, match.pages)
                self._see_again(tokens, Acquired(match), seen)
        return tally

    def stamps(self, tokens: list[int]) -> list[Stamp]:
        """Match, and return the writes of the matched pages."""
        with self._namespace.match(tokens) as match:
            return stamps_of(self._namespace, tokens, match.pages)

    def peek(self, tokens: list[int]) -> int:
        """Returns how many tokens a match would cover."""
        return self._namespace.peek(tokens)

    def epoch(self) -> int | None:
        """Returns the epoch of the store that this worker uses, None where it uses none."""
        return self._client.store_epoch if self._client.connected else None

    def share_lease(self) -> bytes:
        """Returns what has another worker join this one's lease."""
        return self._client.share_lease()

    def stamps_at(self, tokens: list[int], pages: list[PageRef]) -> list[Stamp]:
        """Returns the writes of pages that another worker names; raises KeyError for no memory."""
        return stamps_of(self._namespace, tokens, pages)

    def failure_of_a_match(self, tokens: list[int]) -> str:
        """Match, and return why it is a miss."""
        with self._namespace.match(tokens) as match:
            return str(match.failure)

    def mappings(self) -> int:
        """Returns how many extents this process has mapped."""
        return memfd_mappings()

    def reads_zero(self) -> bool:
        """Returns whether all bytes of all extents that are mapped are zero, and that some are."""
        extents = self._namespace.extents.values()
        return any(map(len, extents)) and not any(any(each) for each in extents)

    def keep_view(self) -> None:
        """Keeps a view of every extent that is mapped."""
        self._views = list(self._namespace.extents.values())

    def drop_views(self) -> None:
        """Keeps no view any more."""
        self._views.clear()

    def corrupt(self, key: str, page: int, offset: int) -> None:
        """Breaks the contract: flip one bit of a matched page."""
        self._namespace.page(self.matched_pages(key)[page])[offset] ^= 1

    def settle(self) -> None:
        """Waits until what was given back has reached the store, for as long as there is one."""
        while self._client.connected and not self._client.flush(LOOK_SECONDS):
            pass

    def _see_again(self, tokens: list[int], acquired: Acquired, seen: list[Stamp]) -> None:
        if stamps_of(self._namespace, tokens, acquired.match.pages) != seen:
            raise WrongPage("a page changed while it was pinned")

    def _publish(self, tokens: list[int], acquired: Acquired, tally: Tally, *, step: int) -> None:
        """Inserts what was written, ``step`` pages at a time; a failure of the store is counted."""
        reservation = acquired.reservation
        assert reservation is not None
        end = reservation.start_page + reservation.page_count
        for first in range(reservation.start_page, end, step):
            part = slice(first * LAYOUT.page_tokens, min(first + step, end) * LAYOUT.page_tokens)
            try:
                inserted = reservation.insert(
                    tokens[part], position=part.start, base=acquired.match
                )
            except errors.StoreError as error:
                tally.update([_class_of(error)])
                return
            stamps_of(self._namespace, tokens, inserted.pages, first=first)
            tally["published"] += inserted.published_page_count

    def _rounds(self, prompts: list[list[int]], rounds: int) -> Iterator[list[int]]:
        order = random.Random(self._name)
        for done in count():
            if done == rounds > 0:
                return
            for tokens in order.sample(prompts, len(prompts)):
                if rounds == 0 and self._told():
                    return
                yield tokens


def _class_of(error: Exception) -> str:
    return type(error).__name__
