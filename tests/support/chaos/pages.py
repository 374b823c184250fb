"""The bytes that a light worker reads and writes."""

from collections.abc import Iterator, Sequence
from itertools import count

from chaos.report import Report
from kvstore_client import Match, Namespace, PageRef, Reservation
from kvstore_client.fault_points import fault_point
from support.page_stamps import (
    TOKEN_BYTES,
    PageKey,
    Stamp,
    WrongPage,
    next_token_of,
    stamp_of,
    stamped,
)

# What is held, as it was when it was first seen or written.
Seen = dict[PageRef, bytes]


class Pages:
    """Checks every page that is met, and writes those that are missing. One thread uses it.

    A wrong page is reported and counted, and the work goes on.
    """

    def __init__(self, namespace: Namespace, writer: str, report: Report) -> None:
        self._namespace = namespace
        self._writer = writer
        self._report = report
        self._numbers = count()

    def check_match(self, tokens: bytes, keys: Sequence[PageKey], match: Match) -> Seen:
        """Reads the pages of a match, its source page too; returns those to see again."""
        seen = self.read("match", keys, match.pages, first=0)
        width = self._namespace.layout.page_tokens
        if match.source is not None:
            key, valid = keys[match.page_count], match.source.token_count
            with match.source as source:
                self._look("source", key, source.page, valid)
        elif match.token_count != match.page_count * width:
            self._report.wrong("match", f"{match.token_count} tokens, {match.page_count} pages")
        if match.next_token is not None and match.next_token != next_token_of(tokens):
            self._report.wrong("match", f"next token {match.next_token}")
        fault_point("read.between")
        self.see_again("match", seen)
        return seen

    def read(
        self, where: str, keys: Sequence[PageKey], pages: Sequence[PageRef], *, first: int
    ) -> Seen:
        """Checks consecutive pages of a sequence, from page ``first`` on; returns their bytes.

        In the place of a partial page there may be a fuller one that begins with it.
        """
        whole = self._namespace.layout.page_tokens
        seen: Seen = {}
        for number, page in enumerate(pages, start=first):
            count = len(keys[number].tokens) // TOKEN_BYTES
            begun = count if count < whole else None
            seen[page] = self._look(f"{where}, page {number}", keys[number], page, begun)
        return seen

    def write(self, keys: Sequence[PageKey], reservation: Reservation) -> Seen:
        """Writes all pages of a reservation, each in two halves; returns what they hold."""
        written: Seen = {}
        for key, page in self._numbered(keys, reservation):
            view = self._namespace.page(page)
            content = stamped(key, Stamp(self._writer, next(self._numbers)), len(view))
            half = len(view) // 2
            view[:half] = content[:half]
            fault_point("write.half")
            view[half:] = content[half:]
            written[page] = content
        fault_point("write.after")
        return written

    def see_again(self, where: str, seen: Seen) -> None:
        """Report whatever of what is held changed."""
        for page, content in seen.items():
            now = bytes(self._namespace.page(page))
            self._report.counts["pages_seen_again"] += 1
            if now != content:
                first = next(at for at in range(len(now)) if now[at] != content[at])
                what = f"{tuple(page)} changed from byte {first} on while it was held"
                self._report.wrong(where, what)

    def _numbered(
        self, keys: Sequence[PageKey], reservation: Reservation
    ) -> Iterator[tuple[PageKey, PageRef]]:
        return zip(keys[reservation.start_page :], reservation.pages, strict=False)

    def _look(
        self, where: str, key: PageKey, page: PageRef, token_count: int | None = None
    ) -> bytes:
        content = bytes(self._namespace.page(page))
        self._report.counts["pages_checked"] += 1
        try:
            stamp_of(content, key, token_count=token_count)
        except WrongPage as error:
            self._report.wrong(f"{where}, slot {tuple(page)}", error)
        return content
