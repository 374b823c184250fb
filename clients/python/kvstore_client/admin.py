"""Administration: the store's own messages, as they come."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kvstore.v1 import lease_pb2, store_pb2
from kvstore_client.attach import AttachConnection
from kvstore_client.calls import StoreCalls
from kvstore_client.deadline import Deadline
from kvstore_client.runtime_dir import RuntimeDir
from kvstore_client.tokens import Tokens, pack_tokens

PAGE_SIZE = 1_000
# Lists and snapshots of a large store; nobody's request waits for them.
ADMIN_TIMEOUT = 10.0


class Admin:
    """Calls that need a credential and no lease; a caller sees its own tenant, an admin all.

    All raise ``StoreError``; nothing is retried. Any thread may use it. ``calls``
    gives the channel, or raises.
    """

    def __init__(
        self, calls: Callable[[], StoreCalls], timeout: float = ADMIN_TIMEOUT, credential: str = ""
    ) -> None:
        self._calls = calls
        self._timeout = timeout
        self.credential = credential

    def capabilities(self) -> store_pb2.GetCapabilitiesResponse:
        """Return limits, features and extents."""
        calls = self._calls()
        response: store_pb2.GetCapabilitiesResponse = calls.call(
            calls.store.GetCapabilities, store_pb2.GetCapabilitiesRequest(), self._timeout
        )
        return response

    def stats(self) -> store_pb2.GetStatsResponse:
        """Return one consistent snapshot of all counters and gauges."""
        calls = self._calls()
        response: store_pb2.GetStatsResponse = calls.call(
            calls.store.GetStats, store_pb2.GetStatsRequest(), self._timeout
        )
        return response

    def leases(self) -> list[lease_pb2.LeaseInfo]:
        """Return all leases, by time of granting."""
        calls = self._calls()
        leases: list[lease_pb2.LeaseInfo] = []
        request = lease_pb2.ListLeasesRequest(page_size=PAGE_SIZE)
        while True:
            answer: lease_pb2.ListLeasesResponse = calls.call(
                calls.lease.ListLeases, request, self._timeout
            )
            leases.extend(answer.leases)
            if not answer.next_page_token:
                return leases
            request.page_token = answer.next_page_token

    def namespaces(self) -> list[store_pb2.NamespaceInfo]:
        """Return all namespaces, by time of creation."""
        calls = self._calls()
        namespaces: list[store_pb2.NamespaceInfo] = []
        request = store_pb2.ListNamespacesRequest(page_size=PAGE_SIZE)
        while True:
            answer: store_pb2.ListNamespacesResponse = calls.call(
                calls.store.ListNamespaces, request, self._timeout
            )
            namespaces.extend(answer.namespaces)
            if not answer.next_page_token:
                return namespaces
            request.page_token = answer.next_page_token

    def prefixes(
        self, namespace_id: bytes, *, max_tokens: int = 0
    ) -> Iterator[store_pb2.PrefixInfo]:
        """Yield the runs of pages that a namespace's index holds, one for each node.

        With the first ``max_tokens`` tokens of each. Nodes that come or go
        meanwhile may or may not be among them.
        """
        calls = self._calls()
        request = store_pb2.ListPrefixesRequest(
            namespace_id=namespace_id, page_size=PAGE_SIZE, max_tokens=max_tokens
        )
        while True:
            answer: store_pb2.ListPrefixesResponse = calls.call(
                calls.store.ListPrefixes, request, self._timeout
            )
            yield from answer.prefixes
            if not answer.next_page_token:
                return
            request.page_token = answer.next_page_token

    def evict_prefix(self, namespace_id: bytes, tokens: Tokens) -> store_pb2.EvictPrefixResponse:
        """Remove the last page of a cached prefix and all that continues it.

        ``tokens`` are whole pages; none removes all of the namespace.
        """
        calls = self._calls()
        request = store_pb2.EvictPrefixRequest(
            namespace_id=namespace_id, tokens=pack_tokens(tokens)
        )
        response: store_pb2.EvictPrefixResponse = calls.call(
            calls.store.EvictPrefix, request, self._timeout
        )
        return response


@contextmanager
def connect_admin(
    runtime_dir: str | os.PathLike[str] | None = None, *, timeout: float = ADMIN_TIMEOUT
) -> Iterator[Admin]:
    """Connect to a store for administration alone, without a lease.

    Its ``credential`` holds until the store restarts. Raises ``StoreError``, and
    ``ValueError`` for a path too long for a socket.
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
