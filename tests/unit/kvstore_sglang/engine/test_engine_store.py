"""Matches in namespaces that may not be open yet."""

from dataclasses import dataclass, field
from typing import Any

from kvstore_client import Match, StoreBudget
from kvstore_client.errors import LayoutMismatch, StoreError, StoreUnavailable
from kvstore_sglang.engine.engine_store import MOST_SLOW, EngineStore

NOT_OPEN = StoreUnavailable("the namespace is not open yet")


@dataclass
class Namespace:
    """A namespace that may open while somebody waits for it."""

    failure: StoreError | None = None
    opens: bool = True
    waits: list[float] = field(default_factory=list)
    matches: int = 0

    def wait_open(self, timeout: float) -> bool:
        """Opens, or does not."""
        self.waits.append(timeout)
        if self.opens:
            self.failure = None
        return self.opens

    def match(self, tokens: bytes, *, budget: StoreBudget) -> Match:
        """Finds nothing, or fails."""
        del tokens, budget
        self.matches += 1
        return Match(failure=self.failure)

    def cached_token_count(self, tokens: bytes) -> int | None:
        """Has a page of four tokens and a part of the next one, unless it failed."""
        assert len(tokens) % 16 == 4
        return None if self.failure is not None else 5


@dataclass
class Access:
    """A client with one namespace for every salt."""

    opened: Namespace
    usable: bool = True
    tried: bool = True

    def namespace(self, salt: bytes) -> Namespace:
        """Returns the namespace."""
        del salt
        return self.opened


def store_of(namespace: Namespace, *, usable: bool = True) -> EngineStore:
    """Returns a store with a namespace."""
    access: Any = Access(namespace, usable)
    return EngineStore(access)


def test_a_new_namespace_is_waited_for() -> None:
    """The first request of a salt finds what others have saved under it."""
    namespace = Namespace(NOT_OPEN)
    found = store_of(namespace).match(b"new", b"", StoreBudget(0.25))
    assert found.failure is None
    assert len(namespace.waits) == 1
    assert 0 < namespace.waits[0] <= 0.25


def test_a_namespace_that_does_not_open_is_waited_for_once() -> None:
    """Other salts are waited for, and this one again once it was open."""
    namespace = Namespace(NOT_OPEN, opens=False)
    store = store_of(namespace)
    found = [store.match(salt, b"", StoreBudget(0.25)).failure for salt in (b"a", b"a", b"b")]
    assert found == [NOT_OPEN] * 3
    assert (len(namespace.waits), namespace.matches) == (2, 2)
    namespace.failure = None
    assert store.match(b"a", b"", StoreBudget(0.25)).failure is None
    namespace.failure = NOT_OPEN
    store.match(b"a", b"", StoreBudget(0.25))
    assert len(namespace.waits) == 3


def test_a_refused_namespace_and_an_absent_store_are_not_waited_for() -> None:
    """Their failures say at once that there is nothing to load."""
    refused = Namespace(LayoutMismatch("another layout"))
    assert store_of(refused).match(b"", b"", StoreBudget(0.25)).failure is refused.failure
    absent = Namespace(NOT_OPEN)
    assert store_of(absent, usable=False).match(b"", b"", StoreBudget(0.25)).failure is NOT_OPEN
    assert refused.waits == absent.waits == []


def test_a_spent_budget_waits_for_nothing() -> None:
    """The match fails without a call."""
    namespace, budget = Namespace(NOT_OPEN), StoreBudget(0.25)
    budget.spent_seconds = 1.0
    found = store_of(namespace).match(b"", b"", budget)
    assert isinstance(found.failure, StoreUnavailable)
    assert (namespace.waits, namespace.matches) == ([], 0)


def test_many_salts_that_do_not_open_are_forgotten() -> None:
    """A bounded number is remembered."""
    store = store_of(Namespace(NOT_OPEN, opens=False))
    for number in range(MOST_SLOW + 2):
        store.match(str(number).encode(), b"", StoreBudget(0.25))
    assert len(store._slow) == 2


def test_a_check_counts_whole_pages() -> None:
    """A store that does not answer has no number."""
    tokens = bytes(2 * 16)
    assert store_of(Namespace()).cached_pages(b"", tokens, 16) == 1
    assert store_of(Namespace(NOT_OPEN)).cached_pages(b"", tokens, 16) is None
