"""The calls under one lease."""

from collections.abc import Callable, Sequence

from kvstore.v1 import lease_pb2, prefix_cache_pb2, store_pb2
from kvstore_client.calls.grpc_channel import StoreCalls
from kvstore_client.fault_points import fault_point
from kvstore_client.values.namespace_key import NamespaceIdentity
from kvstore_client.values.page_layout import PageLayout


def fill_match(
    request: prefix_cache_pb2.MatchPrefixRequest,
    pin_ids: tuple[int, int],
    *,
    accept_next_token: bool = False,
    prefill_tokens_per_second: int = 0,
    windows: Sequence[prefix_cache_pb2.GroupWindow] = (),
    group_start_page: int = 0,
    is_base: bool = False,
) -> None:
    """Fills in an empty match request, except caller, namespace and tokens.

    :meth:`LeaseCalls.match` describes the arguments.
    """
    request.sequence.SetInParent()
    request.pin_id, source_pin_id = pin_ids
    # The base of an insert needs no source page.
    request.source_pin_id = 0 if is_base else source_pin_id
    request.accept_next_token = accept_next_token
    request.prefill_tokens_per_second = prefill_tokens_per_second
    request.groups.extend(windows)
    request.group_start_page = group_start_page
    request.is_base = is_base


def fill_acquire(
    request: prefix_cache_pb2.AcquirePrefixRequest,
    ids: tuple[int, int, int],
    total_page_count: int,
    *,
    accept_next_token: bool = False,
    prefill_tokens_per_second: int = 0,
    yield_idle_ms: int | None = None,
) -> None:
    """Fills in an empty acquire request, except caller, namespace and tokens.

    :meth:`LeaseCalls.acquire` describes the arguments.
    """
    request.sequence.SetInParent()
    request.pin_id, request.source_pin_id, request.reservation_id = ids
    request.total_page_count = total_page_count
    request.accept_next_token = accept_next_token
    request.prefill_tokens_per_second = prefill_tokens_per_second
    if yield_idle_ms is not None:
        request.yield_to_in_flight = True
        request.yield_idle_ms = yield_idle_ms


class LeaseCalls:
    """Calls that name a lease and the epoch that granted it; timeouts in seconds.

    Each is sent once and raises :class:`~kvstore_client.errors.StoreError`.
    Any thread may use it.
    """

    def __init__(self, calls: StoreCalls, lease_id: bytes, store_epoch: int) -> None:
        self._calls = calls
        self._lease_id = lease_id
        self._store_epoch = store_epoch
        self._caller = prefix_cache_pb2.Caller(
            lease_id=lease_id, store_epoch=store_epoch, slot_ranges=True, packed_slots=True
        )

    def use(self, calls: StoreCalls) -> None:
        """Sends later calls over ``calls``, to the server that continues the lease."""
        self._calls = calls

    def match(
        self,
        namespace_id: bytes,
        tokens: bytes,
        pin_ids: tuple[int, int],
        timeout: float,
        *,
        accept_next_token: bool = False,
        prefill_tokens_per_second: int = 0,
        windows: Sequence[prefix_cache_pb2.GroupWindow] = (),
        group_start_page: int = 0,
        is_base: bool = False,
    ) -> prefix_cache_pb2.PrefixMatch:
        """Matches a sequence under the ids of a pin and of a source page's pin.

        ``windows`` are the pages that the match needs of further KV cache groups. With
        ``is_base`` it asks for no source page, and the store counts neither lookup nor hit.
        """
        request = prefix_cache_pb2.MatchPrefixRequest(caller=self._caller)
        fill_match(
            request,
            pin_ids,
            accept_next_token=accept_next_token,
            prefill_tokens_per_second=prefill_tokens_per_second,
            windows=windows,
            group_start_page=group_start_page,
            is_base=is_base,
        )
        request.namespace_id = namespace_id
        fault_point("match.before")
        response: prefix_cache_pb2.MatchPrefixResponse = self._calls.call(
            self._calls.prefix_cache.MatchPrefix, request, timeout, tokens=tokens
        )
        fault_point("match.after")
        return response.match

    def acquire(
        self,
        namespace_id: bytes,
        tokens: bytes,
        ids: tuple[int, int, int],
        total_page_count: int,
        timeout: float,
        *,
        accept_next_token: bool = False,
        prefill_tokens_per_second: int = 0,
        yield_idle_ms: int | None = None,
    ) -> prefix_cache_pb2.AcquirePrefixResponse:
        """Matches a sequence and reserves its rest.

        ``ids`` are those of a pin, of a source page's pin, and of a reservation. With
        ``yield_idle_ms`` the call yields to a prefill in flight that advanced within that
        time; zero means any. A call that yields holds nothing.
        """
        request = prefix_cache_pb2.AcquirePrefixRequest(caller=self._caller)
        fill_acquire(
            request,
            ids,
            total_page_count,
            accept_next_token=accept_next_token,
            prefill_tokens_per_second=prefill_tokens_per_second,
            yield_idle_ms=yield_idle_ms,
        )
        request.namespace_id = namespace_id
        fault_point("acquire.before")
        response: prefix_cache_pb2.AcquirePrefixResponse = self._calls.call(
            self._calls.prefix_cache.AcquirePrefix, request, timeout, tokens=tokens
        )
        fault_point("acquire.after")
        return response

    def reserve(
        self,
        namespace_id: bytes,
        reservations: Sequence[prefix_cache_pb2.ReservationRequest],
        timeout: float,
    ) -> Sequence[prefix_cache_pb2.ReservationGrant]:
        """Makes or grows reservations, all or none. Returns one grant each, in their order."""
        request = prefix_cache_pb2.ReservePagesRequest(
            caller=self._caller, namespace_id=namespace_id, reservations=reservations
        )
        fault_point("reserve.before")
        response: prefix_cache_pb2.ReservePagesResponse = self._calls.call(
            self._calls.prefix_cache.ReservePages, request, timeout
        )
        fault_point("reserve.after")
        return response.grants

    def insert(
        self, request: prefix_cache_pb2.InsertPrefixRequest, timeout: float
    ) -> prefix_cache_pb2.InsertPrefixResponse:
        """Publishes pages of a reservation. Fills in the request's caller."""
        request.caller.CopyFrom(self._caller)
        fault_point("insert.before")
        response: prefix_cache_pb2.InsertPrefixResponse = self._calls.call(
            self._calls.prefix_cache.InsertPrefix, request, timeout
        )
        fault_point("insert.after")
        return response

    def run_step(
        self, request: prefix_cache_pb2.RunStepRequest, timeout: float
    ) -> Sequence[prefix_cache_pb2.StepResult]:
        """Sets the request's caller and runs its operations in order. Returns one result each."""
        request.caller.CopyFrom(self._caller)
        fault_point("step.before")
        response: prefix_cache_pb2.RunStepResponse = self._calls.call(
            self._calls.prefix_cache.RunStep, request, timeout
        )
        fault_point("step.after")
        return response.results

    def prefetch(
        self, namespace_id: bytes, tokens: bytes, timeout: float
    ) -> prefix_cache_pb2.PrefetchPrefixResponse:
        """Begins to load what the store's tier 3 has of a sequence; waits for none of it."""
        request = prefix_cache_pb2.PrefetchPrefixRequest(
            caller=self._caller, namespace_id=namespace_id, sequence={}
        )
        fault_point("prefetch.before")
        response: prefix_cache_pb2.PrefetchPrefixResponse = self._calls.call(
            self._calls.prefix_cache.PrefetchPrefix, request, timeout, tokens=tokens
        )
        fault_point("prefetch.after")
        return response

    def peek(
        self,
        namespace_id: bytes,
        tokens: bytes,
        timeout: float,
        *,
        windows: Sequence[prefix_cache_pb2.GroupWindow] = (),
        group_start_page: int = 0,
    ) -> prefix_cache_pb2.PeekPrefixResponse:
        """Returns the result that a match would have."""
        request = prefix_cache_pb2.PeekPrefixRequest(
            namespace_id=namespace_id,
            tokens=tokens,
            groups=windows,
            group_start_page=group_start_page,
        )
        response: prefix_cache_pb2.PeekPrefixResponse = self._calls.call(
            self._calls.prefix_cache.PeekPrefix, request, timeout
        )
        return response

    def release(self, pin_ids: Sequence[int], timeout: float) -> None:
        """Releases pins."""
        fault_point("release.before")
        self._calls.call(self._calls.prefix_cache.ReleasePins, self._release(pin_ids), timeout)
        fault_point("release.after")

    def abort(self, reservation_ids: Sequence[int], timeout: float) -> None:
        """Ends reservations."""
        fault_point("release.before")
        method = self._calls.prefix_cache.AbortReservation
        self._calls.call(method, self._abort(reservation_ids), timeout)
        fault_point("release.after")

    def post_release(
        self, pin_ids: Sequence[int], timeout: float, on_result: Callable[[bool], None]
    ) -> bool:
        """Posts a release of pins; returns False if no lane is free."""
        fault_point("release.before")
        method = self._calls.prefix_cache.ReleasePins
        posted = self._calls.post(method, self._release(pin_ids), timeout, on_result)
        fault_point("release.after")
        return posted

    def post_abort(
        self, reservation_ids: Sequence[int], timeout: float, on_result: Callable[[bool], None]
    ) -> bool:
        """Posts an abort of reservations; returns False if no lane is free."""
        fault_point("release.before")
        method = self._calls.prefix_cache.AbortReservation
        posted = self._calls.post(method, self._abort(reservation_ids), timeout, on_result)
        fault_point("release.after")
        return posted

    def collect(self, seconds: float = 0.0) -> None:
        """Reads answers to posted calls that arrived or arrive within ``seconds``."""
        self._calls.collect(seconds)

    def renew(self, timeout: float) -> float:
        """Renews the lease and returns its time to live, in seconds from sending."""
        request = lease_pb2.RenewLeaseRequest(
            lease_id=self._lease_id, store_epoch=self._store_epoch
        )
        fault_point("renew.before")
        response: lease_pb2.RenewLeaseResponse = self._calls.call(
            self._calls.lease.RenewLease, request, timeout
        )
        fault_point("renew.after")
        return response.ttl.ToTimedelta().total_seconds()

    def revoke(self, timeout: float) -> None:
        """Ends the lease and all its holds. The caller's device work must be done."""
        request = lease_pb2.RevokeLeaseRequest(
            lease_id=self._lease_id, store_epoch=self._store_epoch
        )
        fault_point("revoke.before")
        self._calls.call(self._calls.lease.RevokeLease, request, timeout)
        fault_point("revoke.after")

    def open_namespace(
        self, identity: NamespaceIdentity, layout: PageLayout, timeout: float
    ) -> store_pb2.OpenNamespaceResponse:
        """Opens a namespace; another thread may cancel it by ``StoreCalls.cancel``."""
        request = store_pb2.OpenNamespaceRequest(
            lease_id=self._lease_id,
            store_epoch=self._store_epoch,
            identity=identity.to_message(),
            layout=layout.to_message(),
        )
        fault_point("open.before")
        response: store_pb2.OpenNamespaceResponse = self._calls.call_cancellably(
            self._calls.store.OpenNamespace, request, timeout
        )
        fault_point("open.after")
        return response

    def _release(self, pin_ids: Sequence[int]) -> prefix_cache_pb2.ReleasePinsRequest:
        return prefix_cache_pb2.ReleasePinsRequest(caller=self._caller, pin_ids=pin_ids)

    def _abort(self, reservation_ids: Sequence[int]) -> prefix_cache_pb2.AbortReservationRequest:
        return prefix_cache_pb2.AbortReservationRequest(
            caller=self._caller, reservation_ids=reservation_ids
        )
