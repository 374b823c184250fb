"""What happens, told to those who watch: a thread of its own for each, none of the calls'."""

from collections.abc import Callable
from itertools import count
from threading import Thread
from typing import TypeAlias

import grpc
import structlog
from grpc_status import rpc_status

from kvstore.core import Identity
from kvstore.core.values.events import (
    Event,
    LeaseEvent,
    NamespaceEvent,
    PagesChange,
    PagesEvent,
    Told,
)
from kvstore.errors import InvalidField, StoreDraining
from kvstore.rpc.wire import fields, status
from kvstore.rpc.wire.report import duration
from kvstore.service.events import Watching
from kvstore.service.store import KVStore
from kvstore.v1 import store_pb2 as pb
from kvstore.v1 import types_pb2

FIELDS = {
    PagesChange.INSERTED: "pages_inserted",
    PagesChange.REMOVED: "pages_removed",
    PagesChange.COPIED: "pages_copied",
    PagesChange.COPIES_REMOVED: "copies_removed",
}


def event_messages(told: Told, *, after: int, started_at: float) -> list[pb.WatchEventsResponse]:
    """Returns what a watcher is told, numbered from the one after ``after`` on.

    ``started_at`` is when the store started, by the clock of the events.
    """
    messages = [
        _message(event, number, started_at)
        for number, event in enumerate(told.events, start=after + 1)
    ]
    if messages:
        messages[0].lost_event_count = told.lost_count
    return messages


def _message(event: Event, number: int, started_at: float) -> pb.WatchEventsResponse:
    message = pb.WatchEventsResponse(
        sequence_number=number,
        uptime=duration(max(event.at - started_at, 0.0)),
        tenant=event.tenant,
    )
    match event:
        case PagesEvent():
            getattr(message, FIELDS[event.change]).CopyFrom(_pages_message(event))
        case LeaseEvent():
            message.lease_changed.CopyFrom(
                pb.LeaseEvent(
                    lease_id=event.lease_id,
                    change=pb.LeaseEvent.Change.Name(event.step.value),
                    display_name=event.display_name,
                )
            )
        case NamespaceEvent():
            message.namespace_changed.CopyFrom(
                pb.NamespaceEvent(
                    namespace_id=event.namespace_id,
                    change=pb.NamespaceEvent.Change.Name(event.step.value),
                )
            )
    return message


def _pages_message(event: PagesEvent) -> pb.PagesEvent:
    return pb.PagesEvent(
        namespace_id=event.namespace_id,
        start_page=event.start_page,
        page_count=event.page_count,
        tier=types_pb2.Tier.Name(event.tier),
        path_digest=event.path_digest,
        cause=pb.PagesEvent.Cause.Name(event.cause.value),
    )


log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

Send: TypeAlias = Callable[[pb.WatchEventsResponse | None], None]
HISTORY = pb.WatchEventsRequest.History


class EventStreams:
    """Serves the calls of ``WatchEvents``. Thread-safe.

    Whoever sends waits until its client has room for more. A client that takes nothing holds
    up its own thread alone, until its call ends: by its deadline at the latest. Meanwhile
    its oldest events are lost.
    """

    def __init__(self, store: KVStore) -> None:
        self._store = store
        self._numbers = count(1)

    def serve(
        self,
        identity: Identity,
        request: pb.WatchEventsRequest,
        context: grpc.ServicerContext,
        send: Send,
    ) -> None:
        """Begins to tell a caller what happens, and returns.

        Raises InvalidField, NamespaceNotFound, QuotaExceeded or StoreDraining.
        """
        namespace_id = request.namespace_id
        if namespace_id:
            fields.random_id("namespace_id", namespace_id)
        if request.history not in HISTORY.values():
            raise InvalidField(field="history", value=request.history, why="unknown")
        watching = self._store.events.begin(
            identity,
            namespace_id,
            history=request.history != pb.WatchEventsRequest.HISTORY_UNSPECIFIED,
            live=request.history != pb.WatchEventsRequest.HISTORY_ALONE,
        )
        if not context.add_callback(watching.end):
            watching.end()
        thread = Thread(
            target=self._run,
            args=(watching, identity.tenant, context, send),
            name=f"kvstore-watcher-{next(self._numbers)}",
            daemon=True,
        )
        try:
            thread.start()
        except RuntimeError:
            self._store.events.forget(watching)
            raise

    def _run(
        self, watching: Watching, tenant: str, context: grpc.ServicerContext, send: Send
    ) -> None:
        try:
            self._tell(watching, tenant, send)
            if watching.draining:
                _end_with(context, StoreDraining())
            send(None)
        except Exception:
            log.exception("watcher_failed")
        finally:
            self._store.events.forget(watching)

    def _tell(self, watching: Watching, tenant: str, send: Send) -> None:
        """Tell a watcher what happens until its watch ends."""
        store, number = self._store, 0
        send(
            pb.WatchEventsResponse(
                uptime=duration(store.uptime()),
                tenant=tenant,
                began=pb.WatchBegan(
                    store_epoch=store.epoch, remembered_event_count=watching.remembered
                ),
            )
        )
        while (told := watching.take()) is not None:
            for message in event_messages(told, after=number, started_at=store.started_at):
                number = message.sequence_number
                send(message)
            watching.pause()


def _end_with(context: grpc.ServicerContext, error: StoreDraining) -> None:
    """Have the call end with an error; the next thing that is sent is its end."""
    ending = rpc_status.to_status(status.to_status(error))
    context.set_code(ending.code)
    context.set_details(ending.details)
    context.set_trailing_metadata(ending.trailing_metadata)
