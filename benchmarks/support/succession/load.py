"""The requests of a client under load, on conversations that other clients use too."""

import json
import sys
import time
import traceback
import weakref
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from xxhash import xxh3_64_intdigest

from kvstore_client import Acquired, Client, Match, Namespace, PageRef, Reservation
from kvstore_client.errors import StoreError
from support.page_stamps import TOKEN_BYTES, PageKey, Stamp, WrongPage, page_keys, stamp_of, stamped
from support.succession.acknowledged import Kind, Row, RowWriter
from support.succession.conversations import (
    FAMILY,
    PAGE_TOKENS,
    SHARED_TOKENS,
    ends_of,
    has_one_worker,
    tokens_of,
)

# Requests are drawn from so many conversations, and sometimes from as many again before those.
WINDOW = 400
# The window moves by one after so many requests of all clients.
REQUESTS_A_STEP = 3
# Requests that are held beside the newest one.
HELD = 4
# Pages to an insert.
STEP = 3
# One in that many requests removes a conversation.
REMOVED_OF = 25
# Seconds of a wait for a store before the next request, and of a request without a store.
LOOK, MISS_SECONDS = 0.05, 0.01


class Orders(NamedTuple):
    """The orders of one client of ``client_count``."""

    name: str
    number: int
    client_count: int
    runtime_dir: Path
    rows: Path
    results: Path
    seed: int

    def report(self, counts: Mapping[str, int]) -> None:
        """Writes what the client counted, once, at its end."""
        part = self.results / f"{self.name}.part"
        part.write_text(json.dumps(counts), encoding="utf-8")
        part.rename(part.with_suffix(".json"))


class _Held(NamedTuple):
    acquired: Acquired
    # Views of the pages, and the checksums of their bytes.
    seen: list[tuple[memoryview, int]]


class Load:
    """Acquires, writes, inserts in steps, holds for a while and releases. One thread uses it.

    ``requests_begun`` is shared by all clients. ``counts`` has requests by their outcome.
    """

    def __init__(
        self,
        client: Client,
        namespace: Namespace,
        orders: Orders,
        requests_begun: "Synchronized[int]",
    ) -> None:
        self.counts = Counter[str]()
        self._client = client
        self._namespace = namespace
        self._orders = orders
        self._begun = requests_begun
        self._rng = Random(orders.seed)
        self._rows = RowWriter(orders.rows / orders.name)
        self._writes = 0
        self._held: deque[_Held] = deque()
        self._own: list[int] = []
        self._removed: set[int] = set()

    def request(self) -> None:
        """Makes one request. An engine goes on after each, whatever happens."""
        if not self._namespace.wait_open(LOOK):
            self.counts["waits_without_store"] += 1
        self.counts["requests"] += 1
        try:
            while len(self._held) > self._rng.randrange(HELD + 1):
                self._let_go()
            self._serve(self._draw())
            if self._own and not self._rng.randrange(REMOVED_OF):
                self._remove(self._own.pop(0))
        except StoreError as error:
            self.counts[f"store_failed: {type(error).__name__}"] += 1
        except Exception:  # noqa: BLE001  # a request of an engine would have failed
            self.counts["requests_failed"] += 1
            traceback.print_exc()

    def end(self) -> None:
        """Releases all that is held."""
        while self._held:
            self._let_go()

    def _draw(self) -> int:
        with self._begun.get_lock():
            head = WINDOW + self._begun.value // REQUESTS_A_STEP
            self._begun.value += 1
        back = WINDOW if self._rng.random() < 0.8 else 2 * WINDOW
        number = max(head - self._rng.randrange(back), 0)
        if not has_one_worker(number):
            return number
        owner = number // FAMILY % self._orders.client_count
        return number - 1 if owner != self._orders.number or number in self._removed else number

    def _serve(self, number: int) -> None:
        end = self._rng.choice(ends_of(number))
        tokens = tokens_of(number, end)
        keys = list(page_keys(tokens, PAGE_TOKENS))
        acquired = self._namespace.acquire(tokens, total_page_count=len(keys))
        held = _Held(acquired, [])
        self._held.append(held)
        if acquired.failure is not None:
            self.counts["misses_without_store"] += 1
            # The engine would compute now.
            time.sleep(MISS_SECONDS)
            return
        self.counts["hits" if acquired.match.page_count else "misses"] += 1
        held.seen.extend(self._read(acquired.match.pages, keys))
        self._read_source(acquired.match, keys)
        if acquired.reservation is None:
            self.counts["not_reserved"] += 1
            return
        if has_one_worker(number) and number not in self._own:
            self._own.append(number)
        prompt = _Prompt(number, tokens, keys)
        self._publish(prompt, acquired.match, acquired.reservation, held.seen)

    def _publish(
        self,
        prompt: "_Prompt",
        match: Match,
        reservation: Reservation,
        seen: list[tuple[memoryview, int]],
    ) -> None:
        first, last = reservation.start_page, reservation.start_page + reservation.page_count
        for key, page in zip(prompt.keys[first:], reservation.pages, strict=False):
            self._writes += 1
            view = self._namespace.page(page)
            view[:] = stamped(key, Stamp(self._orders.name, self._writes), len(view))
        for start in range(first, last, STEP):
            stop = min(start + STEP, last)
            part = slice(start * PAGE_TOKENS * TOKEN_BYTES, stop * PAGE_TOKENS * TOKEN_BYTES)
            inserted = reservation.insert(
                prompt.tokens[part], position=start * PAGE_TOKENS, base=match
            )
            self.counts["published_pages"] += inserted.published_page_count
            if any(page.extent_id not in self._namespace.extents for page in inserted.pages):
                continue  # another client's page, in an extent that is not mapped here yet
            views = self._read(inserted.pages, prompt.keys[start:stop])
            seen.extend(views)
            sums = [checksum for _, checksum in views]
            self._rows.write(prompt.rows(start, inserted.pages.dated_runs, sums))

    def _read(
        self, pages: Sequence[PageRef], keys: Sequence[PageKey]
    ) -> list[tuple[memoryview, int]]:
        """Checks pages that are held; returns views of them and their checksums."""
        found = []
        for page, key in zip(pages, keys, strict=False):
            view = self._namespace.page(page)
            count = len(key.tokens) // TOKEN_BYTES
            self._check(view, key, count if count < PAGE_TOKENS else None)
            found.append((view, xxh3_64_intdigest(view)))
        return found

    def _read_source(self, match: Match, keys: Sequence[PageKey]) -> None:
        if match.source is not None:
            with match.source as source:
                view = self._namespace.page(source.page)
                self._check(view, keys[match.page_count], source.token_count)

    def _check(self, view: memoryview, key: PageKey, token_count: int | None) -> None:
        try:
            stamp_of(bytes(view), key, token_count=token_count)
        except WrongPage as error:
            self._wrong(str(error))

    def _let_go(self) -> None:
        held = self._held.popleft()
        with held.acquired:
            for view, checksum in held.seen:
                if xxh3_64_intdigest(view) != checksum:
                    self._wrong("a page changed while it was held")

    def _remove(self, number: int) -> None:
        self._removed.add(number)
        self._rows.write([Row(Kind.LEAVING, number)])
        tokens = tokens_of(number, SHARED_TOKENS + PAGE_TOKENS)
        self._client.admin.evict_prefix(self._namespace.namespace_id, tokens)
        self._rows.write([Row(Kind.REMOVED, number)])
        self.counts["removals"] += 1

    def _wrong(self, what: str) -> None:
        self.counts["wrong_pages"] += 1
        sys.stderr.write(f"{self._orders.name}: {what}\n")


class _Prompt(NamedTuple):
    """A conversation's tokens through a turn, and the keys of their pages."""

    number: int
    tokens: bytes
    keys: list[PageKey]

    def rows(self, start: int, runs: Sequence[Any], checksums: Sequence[int]) -> list[Row]:
        """Returns the rows of pages that an insert answered, from page ``start`` on."""
        end = len(self.tokens) // TOKEN_BYTES
        dated = [
            (run.extent_id, slot, generation)
            for run in runs
            for slot, generation in zip(run.slots, run.generations, strict=True)
        ]
        return [
            Row(Kind.PAGE, self.number, min((index + 1) * PAGE_TOKENS, end), *place, checksum)
            for index, (place, checksum) in enumerate(
                zip(dated, checksums, strict=True), start=start
            )
        ]


class Mappings:
    """Counts mappings that a client made anew, and those of new extents.

    A new extent in the place of one that the client gave up counts as made anew.
    """

    def __init__(self) -> None:
        self.anew = self.added = 0
        self._known: dict[int, weakref.ref[object]] = {}

    def look(self, namespace: Namespace, *, counting: bool) -> None:
        """Compares the mappings of an open namespace with those of the last call."""
        now = {extent_id: view.obj for extent_id, view in namespace.extents.items()}
        kept = {key for key, known in self._known.items() if known() is now.get(key, self)}
        gone = self._known.keys() - kept
        if counting:
            self.anew += len(gone)
            self.added += max(len(now.keys() - self._known.keys()) - len(gone), 0)
        self._known = {key: weakref.ref(memory) for key, memory in now.items()}
