"""The store of fetch.py, used through the client that workers use."""

from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import perf_counter_ns

import torch

from kvstore_client import Client, ClientConfig, Namespace, NamespaceIdentity, PageLayout
from kvstore_client.admin import Admin, connect_admin
from kvstore_client.pages.match import Match
from kvstore_client.pages.reservation import Acquired
from kvstore_client.testing import running_store
from kvstore_client.values.packed_tokens import Tokens
from kvstore_client.values.page_runs import Pages
from support.fetch.calls import SMALL_NAME
from support.fetch.engine import EngineMemory
from support.fetch.workload import (
    BYTES_TOKENS,
    LARGE_LAYOUT,
    PAGE_TOKENS,
    PAGES,
    PAYLOAD_BYTES,
    SMALL_LAYOUT,
    TOKENS,
    Pace,
    Times,
    prompt_of,
    repeat,
)

LIMIT = 30.0
# One extent for each layout: the prompt whose bytes are copied, a second one, and as much again.
EXTENT_BYTES = 4 * PAYLOAD_BYTES
Copy = Callable[[torch.Tensor, Sequence[int]], None]


class OurWorker:
    """A client, attached, with one namespace for each layout. One thread uses it."""

    def __init__(self, client: Client, admin: Admin) -> None:
        self._client = client
        self._admin = admin
        self._first_token = iter(range(1 << 28, 1 << 31, 1 << 12))
        self.large = self._open(b"large", LARGE_LAYOUT)
        self.small = self._open(SMALL_NAME, SMALL_LAYOUT)

    def publish(self, payload: bytes) -> None:
        """Caches all prompts, one of them with the KV of ``payload``."""
        page_bytes = LARGE_LAYOUT.page_bytes
        with self.large.reserve(start_page=0, page_count=PAGES) as reservation:
            for number, page in enumerate(reservation.pages):
                content = payload[number * page_bytes : (number + 1) * page_bytes]
                self.large.page(page)[:] = content
            reservation.insert(prompt_of(BYTES_TOKENS), position=0)
        for token_count in TOKENS:
            page_count = token_count // PAGE_TOKENS
            with self.small.reserve(start_page=0, page_count=page_count) as reservation:
                reservation.insert(prompt_of(token_count), position=0)
        self._client.flush(LIMIT)

    def hit(
        self, pace: Pace, token_count: int, *, reserving: bool = False, listed: bool = False
    ) -> Times:
        """Times a whole hit: a match, its pages' places, and its release answered.

        ``caller`` is the caller's waiting time, because releases are sent in the background. With
        ``reserving`` it is an acquire, whose empty reservation is aborted too. Tokens are packed,
        or a list as in some engines.
        """
        packed = _one_to_run(prompt_of(token_count))
        tokens: Tokens = packed.tolist() if listed else packed
        page_count = token_count // PAGE_TOKENS

        def find() -> Match | Acquired:
            if reserving:
                return self.small.acquire(tokens, total_page_count=page_count)
            return self.small.match(tokens)

        def once() -> list[int]:
            began = perf_counter_ns()
            with find() as found:
                match = found.match if isinstance(found, Acquired) else found
                places = match.pages.runs
            returned = perf_counter_ns()
            assert self._client.flush(LIMIT)
            ended = perf_counter_ns()
            assert sum(len(run.slots) for run in places) == page_count, match.failure
            return [ended - began, returned - began]

        return repeat(pace, ("whole", "caller"), once)

    def fetch(self, pace: Pace, copy: Copy | None = None) -> Times:
        """Times a hit until its KV is usable: in place, or copied into an engine's memory."""

        def once() -> list[int]:
            began = perf_counter_ns()
            with self._match() as match:
                slots, extent = self._places(match.pages)
                found = perf_counter_ns()
                if copy:
                    copy(extent, slots)
            assert self._client.flush(LIMIT)
            return [perf_counter_ns() - began, found - began]

        return repeat(pace, ("whole", "lookup"), once)

    def store(self, pace: Pace, copy: Copy | None = None) -> Times:
        """Times publishing as many bytes: already written in place, or copied from an engine's.

        Slots are reserved, filled and inserted. The published pages are removed again, untimed.
        """

        def once() -> list[int]:
            tokens = prompt_of(BYTES_TOKENS)
            tokens[0] = next(self._first_token)
            began = perf_counter_ns()
            with self.large.reserve(start_page=0, page_count=PAGES) as reservation:
                if copy:
                    slots, extent = self._places(reservation.pages)
                    copy(extent, slots)
                inserted = reservation.insert(tokens, position=0)
                ended = perf_counter_ns()
            assert inserted.published_page_count == PAGES
            assert self._client.flush(LIMIT)
            self._remove(tokens[:PAGE_TOKENS])
            return [ended - began]

        return repeat(pace, ("whole",), once)

    def verify(self, engine: EngineMemory) -> tuple[str, str]:
        """Fetches once into an engine's cleared memory. Returns the digests of both its pools."""
        engine.clear()
        with self._match() as match:
            slots, extent = self._places(match.pages)
            engine.gather_pages(extent, slots)
            engine.gather_layers(extent, slots)
        return engine.digests()

    def _match(self) -> Match:
        match = self.large.match(_one_to_run(prompt_of(BYTES_TOKENS)))
        assert match.page_count == PAGES, match.failure
        return match

    def _places(self, pages: Pages) -> tuple[Sequence[int], torch.Tensor]:
        """Returns the slots of pages, and their one mapped extent."""
        [run] = pages.runs
        return run.slots, self.large.extent_tensor(run.extent_id)

    def _remove(self, tokens: Tokens) -> None:
        for each in self._admin.namespaces():
            if each.layout.page_bytes == LARGE_LAYOUT.page_bytes:
                self._admin.evict_prefix(each.namespace_id, tokens)

    def _open(self, name: bytes, layout: PageLayout) -> Namespace:
        namespace = self._client.namespace(NamespaceIdentity(name), layout)
        assert namespace.wait_open(LIMIT), namespace.failure
        return namespace


def _one_to_run(cached: "array[int]") -> "array[int]":
    """Returns the tokens and one more, because a match leaves one to run."""
    return cached + array("I", [0])


@contextmanager
def our_store() -> Iterator[Path]:
    """Runs a store with its defaults, and returns its folder."""
    size = str(2 * EXTENT_BYTES)
    with running_store("--tier1-bytes", size, "--extent-bytes", str(EXTENT_BYTES)) as store:
        yield store.runtime_dir


@contextmanager
def our_workers(
    runtime_dir: Path, configs: dict[str, ClientConfig]
) -> Iterator[dict[str, OurWorker]]:
    """Attaches a worker for each configuration until the block ends."""
    with ExitStack() as stack:
        admin = stack.enter_context(connect_admin(runtime_dir))
        yield {
            name: OurWorker(stack.enter_context(Client(runtime_dir, config)), admin)
            for name, config in configs.items()
        }
