"""The calls of the scheduler half's threads to the store. A failed call is a miss."""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from kvstore_client import (
    Acquired,
    GroupWindow,
    Inserted,
    Match,
    Namespace,
    StepOutcome,
    StoreBudget,
    StoreStep,
)
from kvstore_client.engines.reserved_pages import (
    IDLE_BEFORE_TAKEOVER,
    SAVE_BUDGET,
    with_first_pages,
)
from kvstore_client.errors import StoreError, StoreUnavailable
from kvstore_client.values.packed_tokens import ONE_MORE, TOKEN_BYTES, pack_tokens
from kvstore_vllm.identity.adapters import UndigestableAdapter
from kvstore_vllm.identity.request_key import RequestKey
from kvstore_vllm.scheduler.step_operations import (
    AcquirePages,
    InsertPages,
    Outcomes,
    ReleasePages,
    StoreOperation,
)

_logger = logging.getLogger(__name__)


class NamespaceSource(Protocol):
    """The namespaces of one engine, by salt."""

    def namespace(self, salt: bytes) -> Namespace:
        """Returns the namespace of a salt. It may not be open yet."""


class StoreWork:
    """Calls a store for one engine. Any thread may use it."""

    def __init__(self, namespaces: NamespaceSource, page_tokens: int, timeout: float) -> None:
        self._namespaces = namespaces
        self._page_tokens = page_tokens
        self._timeout = timeout

    def look_up(
        self, key: RequestKey, token_ids: Sequence[int], groups: Sequence[GroupWindow] = ()
    ) -> Match | None:
        """Matches the whole pages of ``token_ids``, and the windows of ``groups``.

        Returns None if the request's adapter has no digest.
        """
        namespace = self.open_namespace(key)
        if namespace is None:
            return None
        if isinstance(namespace, StoreError):
            return Match(failure=namespace)
        return namespace.match(
            self.packed(key, token_ids) + ONE_MORE,
            groups=groups,
            budget=StoreBudget(self._timeout),
        )

    def prefetch(self, key: RequestKey, token_ids: Sequence[int]) -> int:
        """Begins to load the whole pages of ``token_ids`` that only the store's tier 3 has.

        Returns the number of tokens that are being loaded; 0 if the store fails.
        """
        namespace = self.open_namespace(key)
        if namespace is None or isinstance(namespace, StoreError):
            return 0
        found = namespace.prefetch(
            self.packed(key, token_ids) + ONE_MORE, budget=StoreBudget(self._timeout)
        )
        return found.loading_token_count

    def cached_pages(self, key: RequestKey, tokens: bytes) -> int | None:
        """Returns how many pages of packed ``tokens`` the store has; None if it did not answer."""
        namespace = self.open_namespace(key)
        if namespace is None or isinstance(namespace, StoreError):
            return None
        found = namespace.cached_token_count(tokens + ONE_MORE)
        return None if found is None else found // self._page_tokens

    def run_step(self, operations: Sequence[StoreOperation]) -> Outcomes:
        """Makes operations of one namespace in one call, in their order.

        Returns the outcome of each: None for an acquire and False for an insert that failed.
        An older store gets single calls.
        """
        namespace = self.open_namespace(operations[0].key)
        if namespace is None or isinstance(namespace, StoreError):
            return [_failed(each) for each in operations]
        step = StoreStep(namespace)
        results = [self._add_to(step, namespace, each) for each in operations]
        step.run()
        return [result() for result in results]

    def _add_to(
        self, step: StoreStep, namespace: Namespace, operation: StoreOperation
    ) -> Callable[[], Acquired | bool | None]:
        """Adds an operation to a step; returns what gives its outcome once the step ran."""
        try:
            if isinstance(operation, AcquirePages):
                return self._add_acquire(step, namespace, operation)
            if isinstance(operation, InsertPages):
                return self._add_insert(step, operation)
            step.release(operation.held)
        except Exception:  # one request's error is no other's
            _logger.exception("store_work_failed")
            return partial(_failed, operation)
        return lambda: None

    def _add_acquire(
        self, step: StoreStep, namespace: Namespace, operation: AcquirePages
    ) -> Callable[[], Acquired]:
        budget = StoreBudget(SAVE_BUDGET)
        page_count = len(operation.token_ids) // self._page_tokens
        outcome = step.acquire(
            self.packed(operation.key, operation.token_ids) + ONE_MORE,
            total_page_count=page_count,
            yield_to_in_flight=operation.yielding,
            yield_idle=IDLE_BEFORE_TAKEOVER,
            budget=budget,
        )
        return lambda: with_first_pages(outcome.result(), namespace, page_count, budget)

    def _add_insert(self, step: StoreStep, operation: InsertPages) -> Callable[[], bool]:
        reservation = operation.acquired.reservation
        assert reservation is not None
        first = operation.start * self._page_tokens
        ids = operation.token_ids[: operation.end * self._page_tokens]
        packed = self.packed(operation.key, ids)[first * TOKEN_BYTES :]
        is_first = operation.start == reservation.start_page
        base = operation.acquired.match if is_first else None
        outcome = step.insert(reservation, packed, position=first, base=base, hint=operation.hint)
        return lambda: _succeeded(outcome)

    def open_namespace(self, key: RequestKey) -> Namespace | StoreError | None:
        """Returns a key's namespace, the error of its opening, or None without a digest.

        A request has no digest if its adapter cannot be read.

        Waits for a new namespace to open, but not for one that the store refused.
        """
        try:
            salt = key.salt
        except UndigestableAdapter as error:
            _logger.warning("request_not_cached", extra={"reason": str(error)})
            return None
        namespace = self._namespaces.namespace(salt)
        failure = namespace.failure
        if failure is None:
            return namespace
        if isinstance(failure, StoreUnavailable) and namespace.wait_open(self._timeout):
            return namespace
        _logger.debug("namespace_not_open", extra={"reason": str(failure)})
        return failure

    def packed(self, key: RequestKey, token_ids: Sequence[int]) -> bytes:
        """Returns the whole pages of ``token_ids`` as the store is asked for them."""
        count = len(token_ids) // self._page_tokens * self._page_tokens
        return pack_tokens(key.tokens(token_ids, count))


def _failed(operation: StoreOperation) -> bool | None:
    """Returns the outcome of an operation that was not made. A release is made at once."""
    if isinstance(operation, ReleasePages):
        operation.held.release()
    return False if isinstance(operation, InsertPages) else None


def _succeeded(outcome: StepOutcome[Inserted]) -> bool:
    try:
        outcome.result()
    except StoreError as error:
        _logger.debug("insert_failed", extra={"reason": str(error)})
        return False
    except Exception:  # one request's error is no other's
        _logger.exception("store_work_failed")
        return False
    return True
