"""A store whose page can be opened, with prompts in it that part here and there."""

import json
import re
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
    *("--log-format", "json"),
)
# A name that would run, were it ever read as markup.
HOSTILE: Final = "<script>document.title='broken'</script><img src=x onerror=alert(1)>"
LIMIT: Final = 30.0
LISTENING: Final = re.compile(r"\{.*\"http_listening\".*\}")


def address_of(store: RunningStore) -> str:
    """Returns where the store that was started last shows its page."""
    lines = [json.loads(each) for each in LISTENING.findall(store.log)]
    port = next(each["port"] for each in reversed(lines) if each["shows"].startswith("page"))
    return f"http://127.0.0.1:{port}/"


@contextmanager
def page_store(*more: str, listen: str = "127.0.0.1:0") -> Iterator[RunningStore]:
    """Runs a store with a page."""
    with running_store(*ARGUMENTS, "--page-listen", listen, *more) as store:
        yield store


@contextmanager
def joined(store: RunningStore, name: str, worker: str = "worker A") -> Iterator[Namespace]:
    """Be a worker in the namespace of a name."""
    config = ClientConfig(call_timeout=LIMIT, display_name=worker)
    with Client(store.runtime_dir, config) as client:
        identity = NamespaceIdentity(sha256(name.encode()).digest(), display_name=name)
        namespace = client.namespace(identity, LAYOUT)
        assert namespace.wait_open(LIMIT), namespace.failure
        yield namespace
        assert client.flush(LIMIT)


def run(namespace: Namespace, tokens: list[int]) -> None:
    """Does as an engine does with a prompt: find what is cached, and insert the rest."""
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
    """Have a system prompt, questions on it and two chats; return the longest chat."""
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
