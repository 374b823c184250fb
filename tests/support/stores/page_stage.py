"""A store with prompts that fork, and its page served by kvstore-ctl."""

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from itertools import count
from typing import Final

from kvstore_client import (
    Client,
    ClientConfig,
    Namespace,
    NamespaceIdentity,
    PagedContent,
    PageLayout,
)
from kvstore_client.testing import RunningStore, running_store, wait_until

LAYOUT: Final = PageLayout.paged(16, PagedContent(2, 1, 8, "float32"))
SLOTS: Final = 2048
ARGUMENTS: Final = (
    *("--tier1-bytes", str(SLOTS * LAYOUT.page_bytes)),
    *("--extent-bytes", str(SLOTS // 4 * LAYOUT.page_bytes)),
)
# A name that would run, were it ever read as markup.
HOSTILE: Final = "<script>document.title='broken'</script><img src=x onerror=alert(1)>"
LIMIT: Final = 30.0
ADDRESS: Final = re.compile(r"http://127.0.0.1:\d+/")


@contextmanager
def page_store(*more: str) -> Iterator[RunningStore]:
    """Runs a store of the page's size."""
    with running_store(*ARGUMENTS, *more) as store:
        yield store


@contextmanager
def page_of(store: RunningStore, *more: str) -> Iterator[str]:
    """Runs ``kvstore-ctl page``, and provides the page's address."""
    where = ("--runtime-dir", str(store.runtime_dir), "--listen", "127.0.0.1:0")
    with subprocess.Popen(
        [sys.executable, "-m", "kvstore_ctl", "page", *where, *more],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            yield ADDRESS.findall(process.stdout.readline())[0]
        finally:
            process.send_signal(signal.SIGINT)
            assert process.wait(LIMIT) == 0


@contextmanager
def joined(store: RunningStore, name: str, worker: str = "worker A") -> Iterator[Namespace]:
    """Joins the namespace of a name as a worker."""
    config = ClientConfig(call_timeout=LIMIT, display_name=worker)
    with Client(store.runtime_dir, config) as client:
        identity = NamespaceIdentity(sha256(name.encode()).digest(), display_name=name)
        namespace = client.namespace(identity, LAYOUT)
        assert namespace.wait_open(LIMIT), namespace.failure
        yield namespace
        assert client.flush(LIMIT)


def run(namespace: Namespace, tokens: list[int]) -> None:
    """Does what an engine does with a prompt: matches it, and inserts the rest."""
    pages = len(tokens) // LAYOUT.page_tokens
    assert wait_until(lambda: _insert(namespace, tokens, pages)), "no slots"


def _insert(namespace: Namespace, tokens: list[int], pages: int) -> bool:
    with namespace.acquire(tokens, total_page_count=pages) as acquired:
        start = acquired.match.page_count
        if start == pages:
            return True
        if acquired.reservation is None:
            return False
        for page in acquired.reservation.pages:
            namespace.page(page)[:] = bytes(LAYOUT.page_bytes)
        begin, end = start * LAYOUT.page_tokens, pages * LAYOUT.page_tokens
        acquired.reservation.insert(tokens[begin:end], position=begin, base=acquired.match)
    return True


def converse(namespace: Namespace) -> list[int]:
    """Inserts a system prompt, questions on it and two chats; returns the longest chat."""
    numbers = count(1)

    def said(length: int) -> list[int]:
        return [next(numbers) for _ in range(length)]

    system, other = said(320), said(160)
    for length in (33, 65, 49, 97, 81, 65):
        run(namespace, system + said(length))
    longest: list[int] = []
    for turns in (4, 2):
        history = system + said(49)
        for _ in range(turns):
            run(namespace, history)
            history = history + said(81)
        longest = longest or history
    for length in (33, 129):
        run(namespace, other + said(length))
    for _ in range(12):
        run(namespace, said(17))
    return longest
