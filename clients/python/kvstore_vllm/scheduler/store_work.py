"""The calls of the scheduler half's threads to the store. A failed call is a miss."""

import logging
from collections.abc import Sequence
from typing import Final, Protocol

from kvstore_client import Acquired, GroupWindow, Match, Namespace, ReuseHint, StoreBudget
from kvstore_client.errors import PoolExhausted, StoreError, StoreUnavailable
from kvstore_client.packed_tokens import TOKEN_BYTES, pack_tokens
from kvstore_vllm.identity.adapters import UndigestableAdapter
from kvstore_vllm.identity.request_key import RequestKey

_logger = logging.getLogger(__name__)

# One extra token of any value, because a match leaves the last token out.
ONE_MORE: Final = bytes(TOKEN_BYTES)
# Seconds for all calls of a save. No request waits for a save, but it must not hold slots long.
SAVE_BUDGET: Final = 5.0
# Seconds without progress after which this engine saves a sequence that another one inserts.
IDLE_BEFORE_TAKEOVER: Final = 2.0
# Each try reserves half as many pages.
TRIES_FOR_ROOM: Final = 4


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

    def acquire(
        self, key: RequestKey, token_ids: Sequence[int], *, yielding: bool
    ) -> Acquired | None:
        """Pins the cached whole pages of ``token_ids``, and reserves slots for the missing ones.

        If the store is full, it reserves slots for as many of the first missing pages as
        possible. With ``yielding`` it pins and reserves nothing if another engine saves more of
        them.
        """
        namespace = self.open_namespace(key)
        if namespace is None or isinstance(namespace, StoreError):
            return None
        budget = StoreBudget(SAVE_BUDGET)
        page_count = len(token_ids) // self._page_tokens
        acquired = namespace.acquire(
            self.packed(key, token_ids) + ONE_MORE,
            total_page_count=page_count,
            yield_to_in_flight=yielding,
            yield_idle=IDLE_BEFORE_TAKEOVER,
            budget=budget,
        )
        if acquired.failure is not None or acquired.in_flight or acquired.reservation:
            return acquired
        start = acquired.match.page_count
        wanted = page_count - start
        for _ in range(TRIES_FOR_ROOM):
            wanted //= 2
            if not wanted:
                break
            try:
                acquired.reservation = namespace.reserve(
                    start_page=start, page_count=wanted, budget=budget
                )
            except PoolExhausted:
                continue
            except StoreError:
                pass
            break
        return acquired

    def insert(
        self,
        key: RequestKey,
        token_ids: Sequence[int],
        acquired: Acquired,
        start: int,
        end: int,
        hint: ReuseHint | None = None,
    ) -> bool:
        """Publishes pages ``start`` to ``end`` of the reservation; returns whether it succeeded."""
        reservation = acquired.reservation
        assert reservation is not None
        first = start * self._page_tokens
        packed = self.packed(key, token_ids[: end * self._page_tokens])[first * TOKEN_BYTES :]
        base = acquired.match if start == reservation.start_page else None
        try:
            reservation.insert(packed, position=first, base=base, hint=hint)
        except StoreError as error:
            _logger.debug("insert_failed", extra={"reason": str(error)})
            return False
        return True

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
