"""The commands of a worker process that publishes and reads pages of KV cache groups.

A page's bytes are a digest of its tokens, of all tokens before them, and of its group, repeated.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import blake2b
from multiprocessing.connection import Connection
from pathlib import Path

from kvstore_client import (
    Client,
    ClientConfig,
    GroupInsert,
    GroupWindow,
    Match,
    Namespace,
    PageRef,
    SpareSlots,
)
from pages.stamped_pages import IDENTITY, LAYOUT
from processes.page_worker import CALL_TIMEOUT, LONG_TTL
from processes.worker_process import LIMIT, WorkerProcess

DIGEST_BYTES = 32


def group_process(runtime_dir: Path, name: str, *, hot_lane: bool = True) -> WorkerProcess:
    """Starts a process with a client and a :class:`GroupWorker`."""
    config = ClientConfig(
        ttl=LONG_TTL, call_timeout=CALL_TIMEOUT, display_name=name, hot_lane=hot_lane
    )
    return WorkerProcess(name, group_worker, runtime_dir, config)


@contextmanager
def group_worker(
    pipe: Connection, runtime_dir: Path, config: ClientConfig
) -> "Iterator[GroupWorker]":
    """Makes the worker in its process, with its namespace open."""
    del pipe
    with Client(runtime_dir, config) as client:
        namespace = client.namespace(IDENTITY, LAYOUT)
        assert namespace.wait_open(LIMIT), namespace.failure
        worker = GroupWorker(namespace)
        yield worker
        worker.let_go()


def content_of(tokens: list[int], position: int, group: int) -> bytes:
    """Returns the bytes of the page of a group at a position of a sequence."""
    through = tokens[: (position + 1) * LAYOUT.page_tokens]
    digest = blake2b(repr((group, through)).encode(), digest_size=DIGEST_BYTES).digest()
    return (digest * (LAYOUT.page_bytes // DIGEST_BYTES + 1))[: LAYOUT.page_bytes]


class GroupWorker:
    """Writes sequences with pages of groups from spare slots, and keeps matches by key."""

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self._spare: SpareSlots | None = None
        self._held: dict[str, Match] = {}

    def reserve(self, page_count: int) -> int:
        """Reserves spare slots; returns how many are free."""
        self._spare = self._namespace.reserve_spare(page_count)
        return self._spare.free_count

    def refill(self) -> int:
        """Replaces the spare slots that moved; returns how many are free."""
        return self._slots().refill()

    def write(self, tokens: list[int], groups: Mapping[int, list[int]]) -> dict[int, list[int]]:
        """Publishes whole pages, and the pages of groups at some positions; two pages a call.

        Returns the positions of the pages of groups that were published.
        """
        page_tokens = LAYOUT.page_tokens
        count = len(tokens) // page_tokens
        with (
            self._namespace.match(tokens) as match,
            self._namespace.new_reservation(start_page=match.page_count) as reservation,
        ):
            for first in range(match.page_count, count, 2):
                end = min(first + 2, count)
                offsets = [self._written(tokens, page, 0) for page in range(first, end)]
                named = self._group_pages(tokens, groups, range(first, end))
                inserted = reservation.insert(
                    tokens[first * page_tokens : end * page_tokens],
                    position=first * page_tokens,
                    base=match if first else None,
                    spare=self._slots(),
                    slot_offsets=offsets,
                    group_pages=named,
                )
                assert len(inserted.pages) == end - first
            old = self._group_pages(tokens, groups, range(match.page_count))
            if old:
                position = match.page_count * page_tokens
                if count == match.page_count:
                    inserted = reservation.insert(
                        [], position=position, base=match, spare=self._slots(), group_pages=old
                    )
                else:
                    reservation.insert([], position=position, spare=self._slots(), group_pages=old)
            return {group: sorted(found) for group, found in reservation.published_groups.items()}

    def match(
        self, key: str, tokens: list[int], windows: Mapping[int, int], start_page: int = 0
    ) -> tuple[int, dict[int, list[int]]]:
        """Matches and checks every byte; returns its pages, and the positions of each group's.

        Keeps the match under ``key``, or releases it without one.
        """
        asked = [GroupWindow(group, count) for group, count in windows.items()]
        match = self._namespace.match(tokens, groups=asked, group_start_page=start_page)
        assert match.failure is None, match.failure
        peeked = self._namespace.peek(tokens, groups=asked, group_start_page=start_page)
        assert peeked >= match.token_count
        self._check(tokens, 0, 0, list(match.pages))
        for group, found in match.groups.items():
            self._check(tokens, group, found.start_page, list(found.pages))
        match.require_current()
        positions = {
            group: list(range(found.start_page, found.start_page + len(found.pages)))
            for group, found in match.groups.items()
        }
        if key:
            self._held[key] = match
        else:
            match.release()
        return match.page_count, positions

    def look_again(self, key: str, tokens: list[int]) -> None:
        """Checks every byte of a match that is kept."""
        match = self._held[key]
        self._check(tokens, 0, 0, list(match.pages))
        for group, found in match.groups.items():
            self._check(tokens, group, found.start_page, list(found.pages))
        match.require_current()

    def write_and_wait(self, tokens: list[int]) -> int:
        """Writes a page into a spare slot and names it nowhere; returns its offset."""
        return self._written(tokens, 0, 1)

    def settle(self) -> None:
        """Does nothing: what is left undone does not matter to its tests."""

    def let_go(self) -> None:
        """Releases everything."""
        for match in self._held.values():
            match.release()
        self._held.clear()
        if self._spare is not None:
            self._spare.abort()
            self._spare = None

    def _slots(self) -> SpareSlots:
        assert self._spare is not None
        return self._spare

    def _written(self, tokens: list[int], position: int, group: int) -> int:
        """Writes a page into a spare slot and returns its offset."""
        if not self._slots().free_count:
            self._slots().refill()
        [offset] = self._slots().take(1)
        page = self._namespace.page(self._slots().page(offset))
        page[:] = content_of(tokens, position, group)
        return offset

    def _group_pages(
        self, tokens: list[int], groups: Mapping[int, list[int]], pages: range
    ) -> list[GroupInsert]:
        """Writes the pages of groups at some positions."""
        chosen = {
            group: [each for each in positions if each in pages]
            for group, positions in groups.items()
        }
        return [
            GroupInsert(group, here, [self._written(tokens, each, group) for each in here])
            for group, here in chosen.items()
            if here
        ]

    def _check(self, tokens: list[int], group: int, start: int, pages: list[PageRef]) -> None:
        for position, page in enumerate(pages, start=start):
            found = bytes(self._namespace.page(page))
            assert found == content_of(tokens, position, group), (group, position)
