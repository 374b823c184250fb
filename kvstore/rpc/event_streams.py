"""Streams of events: each watcher has a thread of its own, none of the calls'."""

from functools import lru_cache
from itertools import count
from threading import Thread

import structlog

from kvstore import background
from kvstore.core import Identity
from kvstore.core.values.event_log import (
    Event,
    EventBatch,
    LeaseEvent,
    NamespaceEvent,
    PagesChange,
    PagesEvent,
)
from kvstore.errors import InvalidField, StoreDraining
from kvstore.rpc.pipeline import Stream
from kvstore.rpc.wire import fields
from kvstore.rpc.wire.report import duration
from kvstore.service.event_watches import WatcherEvents
from kvstore.service.store import KVStore
from kvstore.v1 import store_pb2 as pb
from kvstore.v1 import types_pb2

FIELDS = {
    PagesChange.INSERTED: "pages_inserted",
    PagesChange.REMOVED: "pages_removed",
    PagesChange.COPIED: "pages_copied",
    PagesChange.COPIES_REMOVED: "copies_removed",
}


# Events that are made into messages before work gives way to calls.
ENCODED_AT_ONCE = 64
# Messages that are kept for other watchers of the same events.
KEPT_MESSAGES = 2_048


def event_messages(
    batch: EventBatch, *, after: int, started_at: float
) -> list[pb.WatchEventsResponse]:
    """Returns events as messages, whose numbers begin after ``after``.

    ``started_at`` is the time of the store's start, by the clock of the events. Each event is
    encoded once for all watchers. Gives way to calls.
    """
    messages: list[pb.WatchEventsResponse] = []
    for number, event in enumerate(batch.events, start=after + 1):
        message = pb.WatchEventsResponse()
        message.CopyFrom(_message(event, started_at))
        message.sequence_number = number
        messages.append(message)
        if number % ENCODED_AT_ONCE == 0:
            background.give_way()
    if messages:
        messages[0].lost_event_count = batch.lost_count
    return messages


@lru_cache(KEPT_MESSAGES)
def _message(event: Event, started_at: float) -> pb.WatchEventsResponse:
    """Returns an event's message without a number, which MUST NOT be changed."""
    message = pb.WatchEventsResponse(
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

HISTORY = pb.WatchEventsRequest.History


class EventStreams:
    """Serves the calls of ``WatchEvents``. Thread-safe.

    A sender waits until its client has room for more. A client that takes nothing keeps only its
    own thread busy, at the latest until its call's deadline. Meanwhile its oldest events are lost.
    A client that allows it gets several events in one message: most of the cost is the message.
    """

    def __init__(self, store: KVStore) -> None:
        self._store = store
        self._numbers = count(1)

    def serve(
        self,
        identity: Identity,
        request: pb.WatchEventsRequest,
        stream: Stream,
    ) -> None:
        """Begins to send events to a caller, and returns.

        Raises InvalidField, NamespaceNotFound, QuotaExceeded or StoreDraining.
        """
        namespace_id = request.namespace_id
        if namespace_id:
            fields.random_id("namespace_id", namespace_id)
        if request.history not in HISTORY.values():
            raise InvalidField(field="history", value=request.history, why="unknown")
        watcher = self._store.events.begin(
            identity,
            namespace_id,
            history=request.history != pb.WatchEventsRequest.HISTORY_UNSPECIFIED,
            live=request.history != pb.WatchEventsRequest.HISTORY_ALONE,
        )
        stream.on_end(watcher.end)
        thread = Thread(
            target=self._run,
            args=(watcher, identity.tenant, stream, request.batches),
            name=f"kvstore-watcher-{next(self._numbers)}",
            daemon=True,
        )
        try:
            thread.start()
        except RuntimeError:
            self._store.events.forget(watcher)
            raise

    def _run(
        self,
        watcher: WatcherEvents,
        tenant: str,
        stream: Stream,
        batches: bool,  # noqa: FBT001  # a thread's arguments
    ) -> None:
        try:
            self._begin(watcher, tenant, stream)
            self._send(watcher, stream, in_batches=batches)
            stream.end(StoreDraining() if watcher.draining else None)
        except Exception:
            log.exception("watcher_failed")
        finally:
            self._store.events.forget(watcher)

    def _begin(self, watcher: WatcherEvents, tenant: str, stream: Stream) -> None:
        began = pb.WatchBegan(
            store_epoch=self._store.epoch, remembered_event_count=watcher.remembered
        )
        uptime = duration(self._store.uptime())
        stream.send(pb.WatchEventsResponse(uptime=uptime, tenant=tenant, began=began))

    def _send(self, watcher: WatcherEvents, stream: Stream, *, in_batches: bool) -> None:
        """Sends events to a watcher until its watch ends."""
        number, started_at = 0, self._store.started_at
        while (batch := watcher.take()) is not None:
            messages = event_messages(batch, after=number, started_at=started_at)
            number += len(messages)
            if in_batches and len(messages) > 1:
                messages = [pb.WatchEventsResponse(batch=pb.EventBatch(events=messages))]
            for each in messages:
                stream.send(each)
                background.give_way()
            watcher.pause()
