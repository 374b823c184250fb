"""Events as the messages of a watch."""

from kvstore.core.values.events import (
    Event,
    LeaseEvent,
    NamespaceEvent,
    PagesChange,
    PagesEvent,
    Told,
)
from kvstore.rpc.report import duration
from kvstore.v1 import store_pb2 as pb
from kvstore.v1 import types_pb2

FIELDS = {
    PagesChange.INSERTED: "pages_inserted",
    PagesChange.REMOVED: "pages_removed",
    PagesChange.COPIED: "pages_copied",
    PagesChange.COPIES_REMOVED: "copies_removed",
}


def event_messages(told: Told, *, after: int, started_at: float) -> list[pb.WatchEventsResponse]:
    """Return what a watcher is told, numbered from the one after ``after`` on.

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
