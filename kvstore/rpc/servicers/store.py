"""StoreService: each method reads the request, makes one call, and answers."""

from collections.abc import Sequence
from pathlib import Path

import grpc

from kvstore.core import Limits
from kvstore.errors import InvalidField, StaleEpoch
from kvstore.rpc.events import EventStreams, Send
from kvstore.rpc.identity import Callers
from kvstore.rpc.wire import convert, fields, report
from kvstore.rpc.wire.fields import PageTokens, fresh_key, page_size_of
from kvstore.rpc.wire.report import extent_message, tier_3_message
from kvstore.service.store import KVStore
from kvstore.v1 import store_pb2 as pb
from kvstore.v1 import store_pb2_grpc

TOKEN_BYTES = 4


class StoreServicer(store_pb2_grpc.StoreServiceServicer):
    """Namespaces, statistics and administration over gRPC.

    Raises KVStoreError, which the interceptors turn into statuses.
    ``attach_path`` is where the attach socket is, ``features`` what there is beyond the
    basics.
    """

    def __init__(
        self,
        store: KVStore,
        callers: Callers,
        attach_path: Path,
        server_version: str,
        features: Sequence[str] = (),
    ) -> None:
        self._store = store
        self._callers = callers
        self._attach_path = attach_path
        self._server_version = server_version
        self._features = features
        self._page_key = fresh_key()
        self._streams = EventStreams(store)

    def GetCapabilities(
        self, request: pb.GetCapabilitiesRequest, context: grpc.ServicerContext
    ) -> pb.GetCapabilitiesResponse:
        """Answers limits, extents and the epoch."""
        identity = self._callers.identity(context)
        return pb.GetCapabilitiesResponse(
            store_epoch=self._store.epoch,
            server_version=self._server_version,
            features=self._features,
            limits=report.limits_message(self._store.limits),
            extents=[extent_message(each) for each in self._store.extents(identity)],
            attach_path=str(self._attach_path),
            quotas=report.quotas_message(self._store.quotas.of(identity.tenant)),
            prefix_cache_backend=self._store.prefix_cache_backend,
        )

    def GetStats(
        self, request: pb.GetStatsRequest, context: grpc.ServicerContext
    ) -> pb.GetStatsResponse:
        """Answers one consistent snapshot."""
        identity = self._callers.identity(context)
        return report.stats_message(
            self._store.stats(identity),
            uptime=self._store.uptime(),
            requests=self._store.traffic.requests,
            tier_3=tier_3_message(self._store.tier3.use(), whole=identity.admin),
            tier_bytes=self._store.tier_bytes if identity.admin else {},
        )

    def OpenNamespace(
        self, request: pb.OpenNamespaceRequest, context: grpc.ServicerContext
    ) -> pb.OpenNamespaceResponse:
        """Opens a namespace, with at least one extent in its arena."""
        fields.require_present(request, "identity", "layout")
        namespace = self._store.open_namespace(
            self._callers.member(context, request.lease_id, request.store_epoch),
            convert.namespace_identity_of(request.identity, self._store.limits),
            convert.layout_of(request.layout, self._store.limits),
        )
        return pb.OpenNamespaceResponse(
            namespace_id=namespace.namespace_id,
            arena_id=namespace.arena.arena_id,
            extent_ids=sorted(namespace.arena.lasting),
        )

    def ListNamespaces(
        self, request: pb.ListNamespacesRequest, context: grpc.ServicerContext
    ) -> pb.ListNamespacesResponse:
        """List namespaces by time of creation."""
        identity = self._callers.identity(context)
        tokens = PageTokens(self._page_key, b"namespaces", identity)
        rows, last = self._store.listing.namespaces(
            identity,
            after=tokens.number(request.page_token),
            count=page_size_of(request.page_size),
        )
        return pb.ListNamespacesResponse(
            namespaces=[report.namespace_message(each) for each in rows],
            next_page_token=tokens.after(last),
        )

    def DeleteNamespace(
        self, request: pb.DeleteNamespaceRequest, context: grpc.ServicerContext
    ) -> pb.DeleteNamespaceResponse:
        """Removes a namespace with all its pages; one that is not there succeeds."""
        removed = self._store.delete_namespace(
            self._callers.identity(context),
            fields.random_id("namespace_id", request.namespace_id),
        )
        return pb.DeleteNamespaceResponse(
            evicted_page_count=removed.evicted_page_count,
            detached_page_count=removed.detached_page_count,
        )

    def ListPrefixes(
        self, request: pb.ListPrefixesRequest, context: grpc.ServicerContext
    ) -> pb.ListPrefixesResponse:
        """Lists the nodes of a namespace's tree, by number."""
        namespace_id = fields.random_id("namespace_id", request.namespace_id)
        count = page_size_of(request.page_size)
        identity = self._callers.identity(context)
        tokens = PageTokens(self._page_key, namespace_id, identity)
        prefixes = self._store.prefixes(
            identity,
            namespace_id,
            after=tokens.number(request.page_token),
            count=count,
            max_tokens=_tokens_of_entry(request.max_tokens, count, self._store.limits),
        )
        full = len(prefixes) == count
        last = tokens.make(prefixes[-1].node_id) if full else ""
        return pb.ListPrefixesResponse(
            prefixes=[report.prefix_message(each) for each in prefixes], next_page_token=last
        )

    def EvictPrefix(
        self, request: pb.EvictPrefixRequest, context: grpc.ServicerContext
    ) -> pb.EvictPrefixResponse:
        """Removes the last page of a cached prefix and everything that continues it."""
        epoch = self._store.epoch
        if request.store_epoch not in (0, epoch):
            raise StaleEpoch(store_epoch=epoch, request_epoch=request.store_epoch)
        removed = self._store.evict_prefix(
            self._callers.identity(context),
            fields.random_id("namespace_id", request.namespace_id),
            fields.tokens(request.tokens, 0, self._store.limits),
        )
        return pb.EvictPrefixResponse(
            evicted_page_count=removed.evicted_page_count,
            detached_page_count=removed.detached_page_count,
        )

    def WatchEvents(  # type: ignore[override]  # it sends by itself, as Admission marks it
        self, request: pb.WatchEventsRequest, context: grpc.ServicerContext, send: Send
    ) -> None:
        """Tell what happens, from now on, until the call ends."""
        self._streams.serve(self._callers.identity(context), request, context, send)


def _tokens_of_entry(max_tokens: int, count: int, limits: Limits) -> int:
    """Returns how many tokens an entry may give, so that the answer fits a message.

    Raises :class:`InvalidField` for more: a shorter page has room for longer entries.
    """
    most = limits.max_message_bytes // 2 // TOKEN_BYTES // count
    if max_tokens > most:
        why = f"more than {most} with entries of this number"
        raise InvalidField(field="max_tokens", value=max_tokens, why=why)
    return max_tokens
