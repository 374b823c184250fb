"""The exact rule for acknowledged pages: found with their bytes, unless their slots were freed."""

import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import starmap
from random import Random

from xxhash import xxh3_64_intdigest

from kvstore_client import Match, Namespace, PageRef
from kvstore_client.testing import wait_until
from support.page_stamps import PageKey, WrongPage, page_keys, stamp_of
from support.succession.acknowledged import Acknowledged, Row
from support.succession.conversations import PAGE_TOKENS, SHARED_TOKENS, ends_of, tokens_of
from support.succession.tables import Snapshot, Tables, generation_in

# Seconds until a store that runs has to answer the oracle.
LIMIT = 30.0
# Findings that are described on stderr.
MOST_SAID = 40
# Removed conversations that are matched in one check.
MOST_REMOVED = 50


class NoAnswer(Exception):
    """The store did not answer in time."""


class Oracle:
    """Compares a store with its acknowledgements, while other clients go on.

    ``counts`` has checked, found, evicted, lost, wrong and returned pages. One thread uses it.
    """

    def __init__(self, namespace: Namespace, tables: Tables, acknowledged: Acknowledged) -> None:
        self.counts = Counter[str]()
        self._namespace = namespace
        self._tables = tables
        self._acknowledged = acknowledged
        self._said = 0
        self._rng = Random(0)

    def check(self, before: Snapshot, after: Snapshot) -> None:
        """Checks a successor by the tables before its start and before its first answer.

        A page whose generation is the same in both has to be in the index. A generation that
        changes between them is a loss: no eviction has happened in between. A partial page may
        change: a server that ended may have written that a fuller page takes its place, which then
        has to be there. Raises :class:`NoAnswer`.
        """
        acknowledged = self._acknowledged
        acknowledged.read()
        self._tables.follow()
        by_conversation = defaultdict(list)
        moved = set[Row]()
        for row in list(acknowledged.pages.values()):
            was = generation_in(before, row.place)
            if was is None or was < row.generation:
                continue  # in an extent or a reservation that began later
            if was > row.generation:
                acknowledged.forget(row)
            elif acknowledged.expected(row):
                self.counts["checked_pages"] += 1
                if generation_in(after, row.place) != was:
                    moved.add(row)
                by_conversation[row.conversation].append(row)
        for number, rows in by_conversation.items():
            self._check_conversation(number, rows, moved)
        removed = sorted(acknowledged.removed)
        for number in self._rng.sample(removed, min(len(removed), MOST_REMOVED)):
            self._check_removed(number)

    def _check_conversation(self, number: int, rows: Sequence[Row], moved: set[Row]) -> None:
        end = max(row.end for row in rows)
        tokens = tokens_of(number, end + 1)
        with self._match(tokens) as match:
            dated = {
                PageRef(run.extent_id, slot): generation
                for run in match.pages.dated_runs
                for slot, generation in zip(run.slots, run.generations, strict=True)
            }
            for row in rows:
                if row in moved:
                    self._check_moved(row, match)
                else:
                    self._check_row(row, match, dated)
            self._check_others(tokens, match, {row.place for row in rows})

    def _check_moved(self, row: Row, match: Match) -> None:
        """Checks a page whose generation moved before the first answer."""
        found = None if row.whole else self._found(row, match)
        if found is None or found == row.place:
            self._lost(row, "its generation was moved before the first answer")
            return
        # A fuller page, which begins with this one: its bytes are checked as those of others.
        self.counts["found_pages"] += 1
        self._acknowledged.forget(row)

    def _check_row(self, row: Row, match: Match, dated: dict[PageRef, int]) -> None:
        found = self._found(row, match)
        if found is None or (found != row.place and row.whole):
            if self._tables.generation(row.place) == row.generation:
                self._lost(row, f"a match has {found} in its place")
            else:
                self.counts["evicted_pages"] += 1
                self._acknowledged.forget(row)
            return
        self.counts["found_pages"] += 1
        if found != row.place:
            return  # a fuller page, which begins with this one
        checksum = xxh3_64_intdigest(self._tables.content(row.place))
        now = self._tables.generation(row.place)
        if checksum != row.checksum:
            self._wrong(f"{row} has other bytes")
        if not now == row.generation == dated.get(row.place, row.generation):
            self._wrong(f"{row} is generation {now} while a pin holds it")

    def _found(self, row: Row, match: Match) -> PageRef | None:
        """Returns the page that a match has for a row's tokens."""
        if row.number < match.page_count:
            return match.pages[row.number]
        if row.whole or row.number > match.page_count or match.source is None:
            return None
        there = match.source.token_count >= row.end - row.number * PAGE_TOKENS
        return match.source.page if there else None

    def _check_others(self, tokens: bytes, match: Match, known: set[PageRef]) -> None:
        """Checks pages that no answer acknowledged: these too have to be right."""
        keys = list(page_keys(tokens, PAGE_TOKENS))
        for key, page in zip(keys, match.pages, strict=False):
            if page not in known:
                self._check_stamp(key, page)
        if match.source is not None and match.source.page not in known:
            self._check_stamp(
                keys[match.page_count], match.source.page, token_count=match.source.token_count
            )

    def _check_stamp(self, key: PageKey, page: PageRef, token_count: int | None = None) -> None:
        self.counts["other_pages"] += 1
        if self._tables.generation(page) is None:
            self._tables.follow()
        try:
            stamp_of(bytes(self._tables.content(page)), key, token_count=token_count)
        except WrongPage as error:
            self._wrong(f"slot {tuple(page)}: {error}")

    def _check_removed(self, number: int) -> None:
        self.counts["checked_removals"] += 1
        with self._match(tokens_of(number, ends_of(number)[-1] + 1)) as match:
            back = match.page_count * PAGE_TOKENS - SHARED_TOKENS
            if back > 0:
                self.counts["returned_pages"] += back // PAGE_TOKENS
                self._say(f"conversation {number} was removed, and {back} tokens are back")

    def _match(self, tokens: bytes) -> Match:
        match = Match()

        def answered() -> bool:
            nonlocal match
            match = self._namespace.match(tokens)
            return match.failure is None

        if not wait_until(answered, LIMIT):
            raise NoAnswer(f"no match after {LIMIT} s: {match.failure}")
        return match

    def _lost(self, row: Row, why: str) -> None:
        self.counts["lost_pages"] += 1
        self._acknowledged.forget(row)
        self._say(f"{row} is lost: {why}")

    def _wrong(self, what: str) -> None:
        self.counts["wrong_pages"] += 1
        self._say(what)

    def _say(self, what: str) -> None:
        self._said += 1
        if self._said <= MOST_SAID:
            sys.stderr.write(f"{what}\n")


def changed(before: Snapshot, after: Snapshot) -> int:
    """Returns how many generations differ between two snapshots of the same extents."""
    return sum(
        sum(starmap(int.__ne__, zip(table, after[extent_id], strict=True)))
        for extent_id, table in before.items()
        if extent_id in after
    )
