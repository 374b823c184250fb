"""The light workers of stall.py: requests with known answers, with the store or without."""

import contextlib
import time
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, Protocol

from kvstore_client import (
    Client,
    ClientConfig,
    Namespace,
    NamespaceIdentity,
    PagedContent,
    PageLayout,
    PageRef,
    errors,
)
from support.page_stamps import PageKey, Stamp, WrongPage, page_keys, stamp_of, stamped

LAYOUT = PageLayout.paged(16, PagedContent(4, 2, 16, "float32"))
IDENTITY = NamespaceIdentity(b"pages of stall.py", display_name="light")
PROMPTS = 4
LIGHT_TOKENS = 512
ATTACH_SECONDS = 60.0


class Answer(NamedTuple):
    """The result of a request: a full hit or not, wrong or not, and its wait for the store."""

    hit: bool
    wrong: bool
    store_s: float


class Load(Protocol):
    """One worker's requests. One thread uses it."""

    def request(self, number: int, *, use_store: bool) -> Answer:
        """Makes a request for one of the prompts."""


class Light:
    """A worker without a model. A page's bytes follow from its tokens and are compared on a hit."""

    def __init__(self, namespace: Namespace, name: str) -> None:
        self._namespace = namespace
        self._stamp = Stamp(name, 0)
        self._own = bytearray(LAYOUT.page_bytes)

    def request(self, number: int, *, use_store: bool) -> Answer:
        """Makes or compares every page of a prompt."""
        first = number % PROMPTS * LIGHT_TOKENS
        tokens = list(range(first, first + LIGHT_TOKENS + 1))
        keys = list(page_keys(array("I", tokens[:LIGHT_TOKENS]).tobytes(), LAYOUT.page_tokens))
        if not use_store:
            for key in keys:
                self._write(memoryview(self._own), key)
            return Answer(hit=False, wrong=False, store_s=0.0)
        budget = self._namespace.new_budget()
        with self._namespace.acquire(tokens, total_page_count=len(keys), budget=budget) as acquired:
            matched = acquired.match.pages
            wrong = not all(self._is_right(*each) for each in zip(matched, keys, strict=False))
            reservation = acquired.reservation
            own = [] if reservation is None else reservation.pages
            views = [self._namespace.page(page) for page in own]
            for place, key in enumerate(keys[len(matched) :]):
                self._write(views[place] if views else memoryview(self._own), key)
            if reservation is not None and own:
                start = len(matched) * LAYOUT.page_tokens
                with contextlib.suppress(errors.StoreError):  # the page is computed anyway
                    reservation.insert(
                        tokens[start:LIGHT_TOKENS], position=start, base=acquired.match
                    )
        return Answer(len(matched) == len(keys), wrong, budget.spent_seconds)

    def _write(self, view: memoryview, key: PageKey) -> None:
        view[:] = stamped(key, self._stamp, LAYOUT.page_bytes)

    def _is_right(self, page: PageRef, key: PageKey) -> bool:
        try:
            stamp_of(bytes(self._namespace.page(page)), key)
        except WrongPage:
            return False
        return True


@contextmanager
def light(runtime_dir: Path, name: str) -> Iterator[Load]:
    """Attaches a light worker with a client's default settings."""
    with Client(runtime_dir, ClientConfig(display_name=name)) as client:
        namespace = client.namespace(IDENTITY, LAYOUT)
        assert namespace.wait_open(ATTACH_SECONDS), namespace.failure
        yield Light(namespace, name)


def now() -> float:
    """Returns the time on the clock that all processes of the machine share."""
    return time.clock_gettime(time.CLOCK_MONOTONIC)
