"""StoreService: each method reads the request, makes one call, and answers."""

from collections.abc import Sequence
from pathlib import Path

from kvstore.core import Limits
from kvstore.errors import InvalidField, StaleEpoch
from kvstore.rpc.event_streams import EventStreams
from kvstore.rpc.pipeline import Call
from kvstore.rpc.wire import convert, report
from kvstore.rpc.wire.fields import PageTokens, fresh_key, page_size_of
from kvstore.rpc.wire.remote_report import remote_message
from kvstore.rpc.wire.report import extent_message, succession_message, tier_3_message
from kvstore.service.store import KVStore
from kvstore.v1 import store_pb2 as pb

TOKEN_BYTES = 4


class StoreServicer:
    """Namespaces, statistics and administration.

    Raises KVStoreError, which the pipeline turns into statuses. ``attach_path`` is the path of the
    attach socket. ``features`` are offered beside the basics.
    """

    def __init__(
        self,
        store: KVStore,
        attach_path: Path,
        server_version: str,
        features: Sequence[str] = (),
    ) -> None:
        self._store = store
        self._attach_path = attach_path
        self._server_version = server_version
        self._features = features
        self._page_key = fresh_key()
        self._streams = EventStreams(store)

    def GetCapabilities(
        self, request: pb.GetCapabilitiesRequest, call: Call
    ) -> pb.GetCapabilitiesResponse:
        """Answers limits, extents and the epoch."""
        return pb.GetCapabilitiesResponse(
            store_epoch=self._store.epoch,
            server_version=self._server_version,
            features=self._features,
            limits=report.limits_message(self._store.limits),
            extents=[extent_message(each) for each in self._store.extents(call.who)],
            attach_path=str(self._attach_path),
            quotas=report.quotas_message(self._store.quotas.of(call.who.tenant)),
            prefix_cache_backend=self._store.prefix_cache_backend,
        )

    def GetStats(self, request: pb.GetStatsRequest, call: Call) -> pb.GetStatsResponse:
        """Answers a snapshot, in parts if it is large."""
        use = self._store.tier3.use()
        return report.stats_message(
            self._store.stats(call.who),
            uptime=self._store.uptime(),
            requests=self._store.traffic.requests,
            tier_3=tier_3_message(use, whole=call.who.admin),
            tier_bytes=self._store.tier_bytes if call.who.admin else {},
            succession=succession_message(self._store.succession.use(), whole=call.who.admin),
            remote=remote_message(use.remote, self._store.tier3.about, whole=call.who.admin),
            kv_events=[each for each in self._store.kv_event_uses() if call.who.sees(each.tenant)],
        )

    def OpenNamespace(
        self, request: pb.OpenNamespaceRequest, call: Call
    ) -> pb.OpenNamespaceResponse:
        """Opens a namespace, with at least one extent in its arena."""
        namespace = self._store.open_namespace(
            call.caller(request.lease_id, request.store_epoch),
            convert.namespace_identity_of(request.identity, self._store.limits),
            convert.layout_of(request.layout, self._store.limits),
        )
        return pb.OpenNamespaceResponse(
            namespace_id=namespace.namespace_id,
            arena_id=namespace.arena.arena_id,
            extent_ids=sorted(namespace.arena.lasting),
        )

    def ListNamespaces(
        self, request: pb.ListNamespacesRequest, call: Call
    ) -> pb.ListNamespacesResponse:
        """Lists namespaces by time of creation."""
        tokens = PageTokens(self._page_key, b"namespaces", call.who)
        rows, last = self._store.listing.namespaces(
            call.who,
            after=tokens.number(request.page_token),
            count=page_size_of(request.page_size),
        )
        return pb.ListNamespacesResponse(
            namespaces=[report.namespace_message(each) for each in rows],
            next_page_token=tokens.after(last),
        )

    def DeleteNamespace(
        self, request: pb.DeleteNamespaceRequest, call: Call
    ) -> pb.DeleteNamespaceResponse:
        """Removes a namespace with all its pages; an unknown one succeeds."""
        removed = self._store.delete_namespace(
            call.who,
            request.namespace_id,
        )
        return pb.DeleteNamespaceResponse(
            evicted_page_count=removed.evicted_page_count,
            detached_page_count=removed.detached_page_count,
            unsettled=removed.unsettled,
        )

    def ListPrefixes(self, request: pb.ListPrefixesRequest, call: Call) -> pb.ListPrefixesResponse:
        """Lists the nodes of a namespace's tree, by number."""
        count = page_size_of(request.page_size)
        tokens = PageTokens(self._page_key, request.namespace_id, call.who)
        prefixes = self._store.prefixes(
            call.who,
            request.namespace_id,
            after=tokens.number(request.page_token),
            count=count,
            max_tokens=_tokens_of_entry(request.max_tokens, count, self._store.limits),
        )
        full = len(prefixes) == count
        last = tokens.make(prefixes[-1].node_id) if full else ""
        return pb.ListPrefixesResponse(
            prefixes=[report.prefix_message(each) for each in prefixes], next_page_token=last
        )

    def EvictPrefix(self, request: pb.EvictPrefixRequest, call: Call) -> pb.EvictPrefixResponse:
        """Removes the last page of a cached prefix and everything that continues it."""
        epoch = self._store.epoch
        if request.store_epoch not in (0, epoch):
            raise StaleEpoch(store_epoch=epoch, request_epoch=request.store_epoch)
        removed = self._store.evict_prefix(
            call.who,
            request.namespace_id,
            request.tokens,
        )
        return pb.EvictPrefixResponse(
            evicted_page_count=removed.evicted_page_count,
            detached_page_count=removed.detached_page_count,
            unsettled=removed.unsettled,
        )

    def WatchEvents(self, request: pb.WatchEventsRequest, call: Call) -> pb.WatchEventsResponse:
        """Begins to send what happens from now on, until the call ends. Its answer is empty."""
        assert call.stream is not None  # the method has one
        self._streams.serve(call.who, request, call.stream)
        return pb.WatchEventsResponse()


def _tokens_of_entry(max_tokens: int, count: int, limits: Limits) -> int:
    """Returns the number of tokens of an entry, so that the answer fits a message.

    Raises :class:`InvalidField` for more. A shorter page has room for longer entries.
    """
    most = limits.max_message_bytes // 2 // TOKEN_BYTES // count
    if max_tokens > most:
        why = f"more than {most} with entries of this number"
        raise InvalidField(field="max_tokens", value=max_tokens, why=why)
    return max_tokens
