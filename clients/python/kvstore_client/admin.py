"""Administrative calls, which return the protocol's own messages."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from kvstore.v1 import lease_pb2, named_pin_pb2, prefix_cache_pb2, store_pb2
from kvstore_client.calls.attach_connection import AttachConnection
from kvstore_client.calls.deadlines import Deadline
from kvstore_client.calls.event_watch import EventWatch, History
from kvstore_client.calls.grpc_channel import StoreCalls
from kvstore_client.prefix_fetch import FetchedPrefix, fetch_prefix
from kvstore_client.remote_store import RemoteStore
from kvstore_client.runtime_dir import RuntimeDir
from kvstore_client.values.packed_tokens import TOKEN_BYTES, Tokens, pack_tokens

PAGE_SIZE = 1_000
# For lists and snapshots of a large store. No request waits for them.
ADMIN_TIMEOUT = 10.0
# The length of a watch whose caller names none.
WATCH_SECONDS = 60.0


class Admin:
    """Calls that need a credential and no lease. A caller sees its own tenant, an admin all.

    Every call raises ``StoreError``. None is retried. Any thread may use it. ``calls``
    returns the channel, or raises.
    """

    def __init__(
        self, calls: Callable[[], StoreCalls], timeout: float = ADMIN_TIMEOUT, credential: str = ""
    ) -> None:
        self._calls = calls
        self._timeout = timeout
        self.credential = credential

    def capabilities(self) -> store_pb2.GetCapabilitiesResponse:
        """Returns the store's limits, features and extents."""
        calls = self._calls()
        response: store_pb2.GetCapabilitiesResponse = calls.call(
            calls.store.GetCapabilities, store_pb2.GetCapabilitiesRequest(), self._timeout
        )
        return response

    def stats(self) -> store_pb2.GetStatsResponse:
        """Returns one consistent snapshot of all counters and gauges."""
        calls = self._calls()
        response: store_pb2.GetStatsResponse = calls.call(
            calls.store.GetStats, store_pb2.GetStatsRequest(), self._timeout
        )
        return response

    def leases(self) -> list[lease_pb2.LeaseInfo]:
        """Returns all leases, in the order of their grants."""
        request = lease_pb2.ListLeasesRequest(page_size=PAGE_SIZE)
        answers = self._answers(lambda calls: calls.lease.ListLeases, request)
        return [lease for answer in answers for lease in answer.leases]

    def holds(self, lease: lease_pb2.LeaseInfo) -> list[lease_pb2.HoldInfo]:
        """Returns what a lease holds, oldest first; raises ``LeaseNotFound`` once it ended."""
        request = lease_pb2.ListHoldsRequest(
            lease_id=lease.lease_id, tenant=lease.tenant, page_size=PAGE_SIZE
        )
        answers = self._answers(lambda calls: calls.lease.ListHolds, request)
        return [hold for answer in answers for hold in answer.holds]

    def namespaces(self) -> list[store_pb2.NamespaceInfo]:
        """Returns all namespaces, in the order of their creation."""
        request = store_pb2.ListNamespacesRequest(page_size=PAGE_SIZE)
        answers = self._answers(lambda calls: calls.store.ListNamespaces, request)
        return [namespace for answer in answers for namespace in answer.namespaces]

    def prefixes(
        self, namespace_id: bytes, *, max_tokens: int = 0
    ) -> Iterator[store_pb2.PrefixInfo]:
        """Yields one run of pages for each node of a namespace's index.

        Each has the first ``max_tokens`` tokens of its node. Nodes that are added or removed
        meanwhile may be missing. The pages of a node that is divided, or joined with another,
        may be missing or be there twice.
        """
        request = store_pb2.ListPrefixesRequest(
            namespace_id=namespace_id, page_size=PAGE_SIZE, max_tokens=max_tokens
        )
        for answer in self._answers(lambda calls: calls.store.ListPrefixes, request):
            yield from answer.prefixes

    def evict_prefix(self, namespace_id: bytes, tokens: Tokens) -> store_pb2.EvictPrefixResponse:
        """Removes every page with a cached prefix's last token, and all pages that continue it.

        Without tokens it removes all pages of the namespace. If the prefix is not cached
        whole, it removes nothing.
        """
        calls = self._calls()
        request = store_pb2.EvictPrefixRequest(
            namespace_id=namespace_id, tokens=pack_tokens(tokens)
        )
        response: store_pb2.EvictPrefixResponse = calls.call(
            calls.store.EvictPrefix, request, self._timeout
        )
        return response

    def delete_namespace(self, namespace_id: bytes) -> store_pb2.DeleteNamespaceResponse:
        """Removes a namespace with all its pages. An unknown one succeeds.

        Clients that opened it get ``NamespaceNotFound``. Opening it again creates an empty one.
        """
        calls = self._calls()
        response: store_pb2.DeleteNamespaceResponse = calls.call(
            calls.store.DeleteNamespace,
            store_pb2.DeleteNamespaceRequest(namespace_id=namespace_id),
            self._timeout,
        )
        return response

    def watch_events(
        self,
        namespace_id: bytes = b"",
        *,
        seconds: float = WATCH_SECONDS,
        history: History = History.NONE,
    ) -> EventWatch:
        """Returns the events from now on, of one namespace or of all that the caller may see.

        The watch ends after ``seconds``; the store allows ``limits.max_watch``. The caller
        decides whether to watch again after that, or after an error. ``history`` asks for
        events of the time before, as far as the store remembers them. Raises
        ``NamespaceNotFound``, or ``QuotaExceeded`` if there are too many watches already.
        """
        calls = self._calls()
        request = store_pb2.WatchEventsRequest(
            namespace_id=namespace_id, history=history.value, batches=True
        )
        return EventWatch(calls.stream(calls.store.WatchEvents, request, seconds))

    def peek_prefix(
        self, namespace_id: bytes, tokens: Tokens
    ) -> prefix_cache_pb2.PeekPrefixResponse:
        """Returns what a match would cover. Changes nothing and needs no lease."""
        calls = self._calls()
        request = prefix_cache_pb2.PeekPrefixRequest(
            namespace_id=namespace_id, tokens=pack_tokens(tokens)
        )
        response: prefix_cache_pb2.PeekPrefixResponse = calls.call(
            calls.prefix_cache.PeekPrefix, request, self._timeout
        )
        return response

    def prefetch_prefix(
        self, namespace_id: bytes, tokens: Tokens, *, may_evict: bool = False
    ) -> prefix_cache_pb2.PrefetchPrefixResponse:
        """Begins to load a prefix that only tier 3 has into memory, and waits for none of it.

        Needs no lease. Takes free slots only, unless it ``may_evict`` pages that nobody used
        lately. A store without the feature ``prefetch`` in its capabilities loads nothing. Raises
        ``FeatureUnsupported`` for a store that is too old to know the call.
        """
        calls = self._calls()
        request = prefix_cache_pb2.PrefetchPrefixRequest(
            namespace_id=namespace_id,
            sequence={"tokens": pack_tokens(tokens)},
            may_evict=may_evict,
        )
        response: prefix_cache_pb2.PrefetchPrefixResponse = calls.call(
            calls.prefix_cache.PrefetchPrefix, request, self._timeout
        )
        return response

    def fetch_prefix(
        self, namespace_id: bytes, tokens: Tokens, *, seconds: float, may_evict: bool = False
    ) -> FetchedPrefix:
        """Loads a prefix that only tier 3 has, and waits ``seconds`` at most.

        Give the tokens of whole pages, all of which are loaded: it waits longer for the tokens of a
        page that is not whole. Repeats :meth:`prefetch_prefix`, and raises what it raises. A store
        without a tier 3 loads nothing, and the answer says what is in memory.
        """
        packed = pack_tokens(tokens)
        wanted = len(packed) // TOKEN_BYTES
        # A match leaves the last token to compute. With one more, all whole pages count.
        packed += bytes(TOKEN_BYTES)
        return fetch_prefix(
            lambda: self.prefetch_prefix(namespace_id, packed, may_evict=may_evict),
            wanted,
            seconds,
        )

    def pin_prefix(
        self,
        namespace_id: bytes,
        name: str,
        tokens: Tokens,
        *,
        ttl: float | None = None,
        require_all: bool = False,
    ) -> named_pin_pb2.PinPrefixResponse:
        """Pins the whole pages of a prefix that are cached now, under a name.

        The pin ends by :meth:`unpin_prefix`, after ``ttl`` seconds, or when one of its pages is
        removed. It ends at a restart too, unless a holder keeps the store's memory; ``ttl`` then
        begins anew. Repeated with the same tokens, the call returns what is
        pinned and restarts ``ttl``. With ``require_all`` it raises ``PrefixNotCached``
        unless every whole page is cached.
        """
        calls = self._calls()
        request = named_pin_pb2.PinPrefixRequest(
            namespace_id=namespace_id,
            name=name,
            tokens=pack_tokens(tokens),
            require_all=require_all,
        )
        if ttl is not None:
            request.ttl.FromNanoseconds(round(ttl * 1e9))
        response: named_pin_pb2.PinPrefixResponse = calls.call(
            calls.named_pin.PinPrefix, request, self._timeout
        )
        return response

    def unpin_prefix(self, namespace_id: bytes, name: str) -> None:
        """Ends a named pin. An unknown name succeeds. Its pages stay cached until evicted."""
        calls = self._calls()
        request = named_pin_pb2.UnpinPrefixRequest(namespace_id=namespace_id, name=name)
        calls.call(calls.named_pin.UnpinPrefix, request, self._timeout)

    def named_pins(self, namespace_id: bytes = b"") -> list[named_pin_pb2.NamedPinInfo]:
        """Returns the named pins of one namespace or of all, oldest first."""
        request = named_pin_pb2.ListPinsRequest(namespace_id=namespace_id, page_size=PAGE_SIZE)
        answers = self._answers(lambda calls: calls.named_pin.ListPins, request)
        return [pin for answer in answers for pin in answer.pins]

    def _answers(self, method: Callable[[StoreCalls], Any], request: Any) -> Iterator[Any]:  # noqa: ANN401  # stubs are untyped
        """Yields the pages of a list. Each request carries the token of the answer before."""
        calls = self._calls()
        while True:
            answer = calls.call(method(calls), request, self._timeout)
            yield answer
            if not answer.next_page_token:
                return
            request.page_token = answer.next_page_token


@contextmanager
def connect_admin(
    runtime_dir: str | os.PathLike[str] | None = None, *, timeout: float = ADMIN_TIMEOUT
) -> Iterator[Admin]:
    """Connects to a store for administration alone, without a lease.

    Its ``credential`` is valid until a server begins with an empty cache. Raises ``StoreError``,
    and ``ValueError`` if the path is too long for a socket.
    """
    paths = RuntimeDir(runtime_dir)
    connection = AttachConnection(paths.attach_socket)
    try:
        welcome = connection.hello("kvstore-admin", cuda_mps=False, deadline=Deadline(timeout))
        calls = StoreCalls(paths.grpc_target, welcome.credential)
        try:
            yield Admin(lambda: calls, timeout, welcome.credential)
        finally:
            calls.close()
    finally:
        connection.close()


@contextmanager
def connect_remote_admin(remote: RemoteStore, *, timeout: float = ADMIN_TIMEOUT) -> Iterator[Admin]:
    """Connects to a store over TCP for administration. The first call connects.

    ``credential`` is the token. Raises ``ValueError`` if a file cannot be read.
    """
    calls = remote.calls()
    try:
        yield Admin(lambda: calls, timeout, remote.token)
    finally:
        calls.close()
