"""Writers of prompts, and tier 3's reports about them, until the server is killed."""

from collections.abc import Iterator
from queue import Empty, SimpleQueue
from random import Random
from threading import Event, Thread

from kvstore_client import Client, Namespace
from kvstore_client.errors import StoreError
from support.recovery.prompts import LAYOUT, bytes_of, page_count, tokens_of

WRITERS = 2
# One in that many prompts of tier 3 is removed.
REMOVED_OF = 12
# Seconds between two queries of tier 3.
LOOK = 0.002


class Told:
    """The store's reports before it was killed.

    ``acknowledged`` has the pages of each prompt in tier 3. ``leaving`` has the prompts whose
    removal began, and ``removed`` those whose removal the store confirmed.
    """

    def __init__(self) -> None:
        self.acknowledged: dict[int, int] = {}
        self.leaving: set[int] = set()
        self.removed: set[int] = set()


class Load:
    """Threads that insert prompts, and one that queries them. They end with the store."""

    def __init__(
        self, client: Client, namespace: Namespace, told: Told, numbers: Iterator[int], rng: Random
    ) -> None:
        self.ended = Event()
        self._client = client
        self._namespace = namespace
        self._told = told
        self._numbers = numbers
        self._rng = rng
        self._inserted: SimpleQueue[int] = SimpleQueue()
        [info] = client.admin.namespaces()
        self._namespace_id = info.namespace_id
        self._threads = [Thread(target=self._write) for _ in range(WRITERS)]
        self._threads.append(Thread(target=self._ask))
        for each in self._threads:
            each.start()

    def end(self) -> None:
        """Waits until all threads have ended."""
        self.ended.set()
        for each in self._threads:
            each.join()

    def _write(self) -> None:
        while not self.ended.is_set():
            number = next(self._numbers)
            if _insert(self._namespace, number):
                self._inserted.put(number)

    def _ask(self) -> None:
        """Queries inserted prompts until tier 3 has them, and removes some."""
        waiting: dict[int, list[int]] = {}
        while not self.ended.wait(LOOK):
            while True:
                try:
                    number = self._inserted.get_nowait()
                except Empty:
                    break
                waiting[number] = tokens_of(number)
            for number, tokens in list(waiting.items()):
                try:
                    if self._is_there(number, tokens):
                        del waiting[number]
                except StoreError:
                    return

    def _is_there(self, number: int, tokens: list[int]) -> bool:
        """Records how much of a prompt tier 3 has. Returns whether that is all of it."""
        peeked = self._client.admin.peek_prefix(self._namespace_id, tokens)
        count = peeked.tier_3_token_count // LAYOUT.page_tokens
        if count:
            self._told.acknowledged[number] = count
        if count < page_count(number):
            return False
        if count > 1 and not self._rng.randrange(REMOVED_OF):
            self._told.leaving.add(number)
            # The first page stays, because other prompts share it.
            start = tokens[: 2 * LAYOUT.page_tokens]
            self._client.admin.evict_prefix(self._namespace_id, start)
            self._told.removed.add(number)
        return True


def _insert(namespace: Namespace, number: int) -> bool:
    """Inserts a prompt. Returns whether the store accepted it."""
    tokens, count = tokens_of(number), page_count(number)
    with namespace.acquire(tokens, total_page_count=count) as acquired:
        matched, reservation = acquired.match.page_count, acquired.reservation
        if acquired.failure is not None or (reservation is None and matched < count):
            return False
        if reservation is None or matched == count:
            return True
        for page, ref in enumerate(reservation.pages, start=matched):
            namespace.page(ref)[:] = bytes_of(tokens, page)
        start = matched * LAYOUT.page_tokens
        try:
            reservation.insert(
                tokens[start : count * LAYOUT.page_tokens], position=start, base=acquired.match
            )
        except StoreError:
            return False
    return True
