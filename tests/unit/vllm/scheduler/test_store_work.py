"""The calls that the scheduler half's threads make."""

from dataclasses import dataclass
from typing import Any

import pytest

from kvstore_client import Acquired, Match, Prefetched
from kvstore_client.errors import LayoutMismatch, LimitExceeded, StoreError, StoreUnavailable
from kvstore_client.values.packed_tokens import pack_tokens
from kvstore_vllm.identity.request_key import RequestKey
from kvstore_vllm.scheduler.step_operations import (
    AcquirePages,
    InsertPages,
    ReleasePages,
    StoreOperation,
)
from kvstore_vllm.scheduler.store_work import StoreWork

PAGE = 4
TOKENS = list(range(8))


@dataclass
class NamespaceAt:
    """A namespace whose store reports ``failure``. It records whether somebody waits."""

    failure: StoreError | None = None
    opens: bool = False
    waited: bool = False

    def wait_open(self, timeout: float) -> bool:
        """Records that somebody waits."""
        assert timeout > 0
        self.waited = True
        return self.opens

    def match(self, tokens: bytes, **_: object) -> Match:
        """Matches nothing. The tokens have to be whole pages and one token more."""
        assert len(tokens) == 4 * (len(TOKENS) + 1)
        return Match()

    def prefetch(self, tokens: bytes, **_: object) -> Prefetched:
        """Loads a page of the tokens, which are those of a match."""
        assert len(tokens) == 4 * (len(TOKENS) + 1)
        return Prefetched(loading_token_count=PAGE)

    def cached_token_count(self, tokens: bytes) -> int | None:
        """Has a page of the tokens and a part of the next one, unless there are none."""
        assert len(tokens) % 16 == 4
        return PAGE + 1 if len(tokens) > 4 else None


class OneNamespace:
    """Returns one namespace for every salt."""

    def __init__(self, namespace: NamespaceAt) -> None:
        self._namespace = namespace

    def namespace(self, salt: bytes) -> Any:  # noqa: ANN401  # a stand-in
        """Returns the namespace."""
        assert salt == b""
        return self._namespace


def work(namespace: NamespaceAt) -> StoreWork:
    """Returns the work of one namespace."""
    return StoreWork(OneNamespace(namespace), PAGE, 0.25)


@pytest.mark.parametrize("refusal", [LayoutMismatch("other pages"), LimitExceeded("too many")])
def test_a_namespace_that_is_refused_is_waited_for_by_nobody(refusal: StoreError) -> None:
    """A refused namespace is not waited for, and the lookup reports the refusal."""
    namespace = NamespaceAt(refusal)
    found = work(namespace).look_up(RequestKey(), TOKENS)
    assert not namespace.waited
    assert found is not None
    assert found.failure is refusal
    acquired, match = Acquired(Match()), Match()
    operations: list[StoreOperation] = [
        AcquirePages(RequestKey(), TOKENS, yielding=False, done=lambda _: None),
        InsertPages(RequestKey(), TOKENS, acquired, 0, 2, None, lambda _: None),
        ReleasePages(RequestKey(), match),
    ]
    assert work(namespace).run_step(operations) == [None, False, None]
    assert not namespace.waited


@pytest.mark.parametrize("opens", [True, False])
def test_a_namespace_that_is_opening_is_waited_for(*, opens: bool) -> None:
    """A lookup waits for the namespace of a new salt."""
    namespace = NamespaceAt(StoreUnavailable("not yet"), opens)
    found = work(namespace).look_up(RequestKey(), TOKENS)
    assert namespace.waited
    assert found is not None
    assert (found.failure is None) == opens


def test_an_open_namespace_is_asked_at_once() -> None:
    """A lookup does not wait for an open namespace."""
    namespace = NamespaceAt()
    found = work(namespace).look_up(RequestKey(), TOKENS)
    assert not namespace.waited
    assert found is not None
    assert found.failure is None


def test_a_prefetch_names_the_tokens_of_a_lookup() -> None:
    """The store loads what the lookup will match; a namespace that is not open loads nothing."""
    assert work(NamespaceAt()).prefetch(RequestKey(), TOKENS) == PAGE
    assert work(NamespaceAt(LayoutMismatch("other pages"))).prefetch(RequestKey(), TOKENS) == 0


def test_a_check_counts_whole_pages() -> None:
    """No answer is none, and neither is a namespace that is not open."""
    tokens = pack_tokens(TOKENS)
    assert work(NamespaceAt()).cached_pages(RequestKey(), tokens) == 1
    assert work(NamespaceAt()).cached_pages(RequestKey(), b"") is None
    refused = NamespaceAt(LayoutMismatch("other pages"))
    assert work(refused).cached_pages(RequestKey(), tokens) is None
