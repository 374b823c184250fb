"""kvstore-ctl events: the events of a store, one line each."""

import json
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import chain, islice
from math import inf
from typing import Annotated

import typer
from google.protobuf.duration_pb2 import Duration

from kvstore.v1 import store_pb2, types_pb2
from kvstore_client.admin import Admin
from kvstore_client.calls.event_watch import History
from kvstore_ctl.console import RuntimeDirOption, connected
from kvstore_ctl.message_json import plain
from kvstore_ctl.terminal_text import printable
from kvstore_ctl.typed_values import namespace_of, title_of

SHORT_ID = 8
# The number of shown events to remember, to find where the next watch continues.
TAIL = 256
# The verb of a line about pages, by the event's field.
VERBS = {
    "pages_inserted": "inserted",
    "pages_removed": "removed",
    "pages_copied": "copied",
    "copies_removed": "copy removed",
}
WHERE = {
    "inserted": "into tier",
    "removed": "from tier",
    "copied": "to tier",
    "copy removed": "from tier",
}
# The names of --kind, and the fields of the contract.
KINDS = {
    "inserted": "pages_inserted",
    "removed": "pages_removed",
    "copied": "pages_copied",
    "copy-gone": "copies_removed",
    "lease": "lease_changed",
    "namespace": "namespace_changed",
}

AsJsonLines = Annotated[
    bool, typer.Option("--json", metavar="", help="Print one JSON value a line, instead of text.")
]


def events(
    *,
    follow: Annotated[
        bool,
        typer.Option(
            "--follow", "-f", metavar="", help="Continue until interrupted or the store stops."
        ),
    ] = False,
    seconds: Annotated[
        float, typer.Option(min=0.0, help="Seconds to wait for events. Default: do not wait.")
    ] = 0.0,
    new: Annotated[
        bool, typer.Option("--new", metavar="", help="Leave out earlier events.")
    ] = False,
    namespace: Annotated[
        str, typer.Option(help="Only the namespace whose id or name begins with this.")
    ] = "",
    kind: Annotated[
        list[str] | None,
        typer.Option(help=f"Only events of this kind, of {', '.join(KINDS)}. Can be repeated."),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Largest number of events. Default: no limit.")
    ] = None,
    runtime_dir: RuntimeDirOption = None,
    as_json: AsJsonLines = False,
) -> None:
    """Shows events of pages, leases and namespaces, one line each.

    The events that the store remembers come first. Times are by this machine's clock and the
    store's uptime. Tokens are never shown.
    """
    if follow and seconds:
        raise typer.BadParameter("give one of the two", param_hint="--follow, --seconds")
    if wrong := set(kind or ()) - set(KINDS):
        known = ", ".join(KINDS)
        raise typer.BadParameter(f"one of {known}, not {min(wrong)!r}", param_hint="--kind")
    with suppress(KeyboardInterrupt), connected(runtime_dir) as admin:
        listed = admin.namespaces()
        chosen = namespace_of(listed, namespace).namespace_id if namespace else b""
        titles = Titles(admin.namespaces, listed)
        observed = watched(admin, chosen, follow=follow, seconds=seconds, new=new)
        for at, event in islice(of_kinds(observed, kind or KINDS), limit):
            typer.echo(json_line(at, event) if as_json else text_line(at, event, titles))


class Titles:
    """Namespaces' titles by id. Asks the store for those that were created since."""

    def __init__(
        self,
        listing: Callable[[], Iterable[store_pb2.NamespaceInfo]],
        listed: Iterable[store_pb2.NamespaceInfo] = (),
    ) -> None:
        self._listing = listing
        self._asked = datetime.min.replace(tzinfo=UTC)
        self._known: dict[bytes, str] = {}
        self._learn(listed)

    def of(self, namespace_id: bytes, at: datetime) -> str:
        """Returns a namespace's title, or the beginning of its id if it no longer exists.

        ``at`` is a time at which it existed. If that is before the last listing, the store is
        not asked again.
        """
        if namespace_id not in self._known:
            self._known[namespace_id] = _short(namespace_id)
            if at >= self._asked:
                self._asked = datetime.now(UTC)
                self._learn(self._listing())
        return self._known[namespace_id]

    def _learn(self, listed: Iterable[store_pb2.NamespaceInfo]) -> None:
        self._known |= {each.namespace_id: printable(title_of(each)) for each in listed}


def of_kinds(
    observed: Iterable[tuple[datetime, store_pb2.WatchEventsResponse]], kinds: Collection[str]
) -> Iterator[tuple[datetime, store_pb2.WatchEventsResponse]]:
    """Yields the events of some :data:`KINDS`. All kinds include those unknown to this program."""
    fields = {KINDS[each] for each in kinds}
    everything = fields == set(KINDS.values())
    return (each for each in observed if everything or each[1].WhichOneof("event") in fields)


def watched(
    admin: Admin, namespace_id: bytes, *, follow: bool, seconds: float, new: bool
) -> Iterator[tuple[datetime, store_pb2.WatchEventsResponse]]:
    """Yields events with their times by this machine's clock.

    Watches follow each other, and each begins with the events that the store remembers. Events
    that were yielded before are left out. Times cannot tell which these are, because many events
    have the same time. So the last yielded events are compared.
    """
    longest = _seconds(admin.capabilities().limits.max_watch)
    history = History.NONE if new else History.FIRST if follow or seconds else History.ALONE
    left = inf if follow else seconds
    last: deque[store_pb2.WatchEventsResponse] = deque(maxlen=TAIL)
    since = -1.0
    while True:
        span = min(left or longest, longest)
        with admin.watch_events(namespace_id, seconds=span, history=history) as watch:
            began = _seconds(watch.began.uptime)
            started = datetime.now(UTC) - timedelta(seconds=began)
            if history is History.NONE:
                since = began
            observed = iter(watch)
            remembered = list(islice(observed, watch.began.began.remembered_event_count))
            for event in chain(_unseen(remembered, last, since), observed):
                last.append(event)
                yield started + timedelta(seconds=_seconds(event.uptime)), event
        left -= span
        if left <= 0:
            return
        history = History.FIRST


def _unseen(
    remembered: list[store_pb2.WatchEventsResponse],
    last: Collection[store_pb2.WatchEventsResponse],
    since: float,
) -> list[store_pb2.WatchEventsResponse]:
    """Returns the events after ``last``, those yielded before; without any, those since a time."""
    if not last:
        return [each for each in remembered if _seconds(each.uptime) > since]
    known, there = [_content(each) for each in last], [_content(each) for each in remembered]
    ends = [end for end in range(len(there), 0, -1) if there[end - 1] == known[-1]]
    whole = [end for end in ends if there[max(end - len(known), 0) : end] == known[-end:]]
    # The longest overlap, and the earliest among equals: rather repeat an event than lose one.
    best = max(whole, key=lambda end: (min(end, len(known)), -end), default=None)
    # If events were lost in between, the latest equal event counts. Without one, all are new.
    return remembered[best or next(iter(ends), 0) :]


def _content(event: store_pb2.WatchEventsResponse) -> store_pb2.WatchEventsResponse:
    """Returns an event without the fields that differ between watches."""
    content = store_pb2.WatchEventsResponse()
    content.CopyFrom(event)
    content.ClearField("sequence_number")
    content.ClearField("lost_event_count")
    return content


def _seconds(span: Duration) -> float:
    return span.ToNanoseconds() / 1e9


def json_line(at: datetime, event: store_pb2.WatchEventsResponse) -> str:
    """Returns an event and its time as one JSON value."""
    return json.dumps({"time": at.isoformat(timespec="milliseconds")} | plain(event))


def text_line(at: datetime, event: store_pb2.WatchEventsResponse, titles: Titles) -> str:
    """Returns an event and its time in words."""
    lost = f"({event.lost_event_count} lost before) " if event.lost_event_count else ""
    when = at.astimezone().isoformat(sep=" ", timespec="milliseconds")
    return f"{when}  {event.tenant}  {lost}{_what(event, at, titles)}"


def _what(event: store_pb2.WatchEventsResponse, at: datetime, titles: Titles) -> str:
    """Returns the content of an event in words."""
    match event.WhichOneof("event"):
        case "lease_changed":
            lease = event.lease_changed
            change = store_pb2.LeaseEvent.Change.Name(lease.change).removeprefix("CHANGE_").lower()
            name = f" ({printable(lease.display_name)})" if lease.display_name else ""
            return f"lease {_short(lease.lease_id)}{name} {change}"
        case "namespace_changed":
            space = event.namespace_changed
            change = store_pb2.NamespaceEvent.Change.Name(space.change)
            title = titles.of(space.namespace_id, at)
            return f"namespace {title} {change.removeprefix('CHANGE_').lower()}"
        case "pages_inserted" | "pages_removed" | "pages_copied" | "copies_removed" as field:
            pages = getattr(event, field)
            return _pages(VERBS[field], pages, titles.of(pages.namespace_id, at))
        case other:
            return f"unknown event: {other}"


def _pages(verb: str, pages: store_pb2.PagesEvent, title: str) -> str:
    cause = store_pb2.PagesEvent.Cause.Name(pages.cause).removeprefix("CAUSE_").lower()
    tier = types_pb2.Tier.Name(pages.tier).removeprefix("TIER_")
    end = pages.start_page + pages.page_count
    path = f" path {_short(pages.path_digest)}" if pages.path_digest else ""
    run = f"page {end - 1}" if pages.page_count == 1 else f"pages {pages.start_page} to {end - 1}"
    # The cause of an insert is mostly "inserted" too.
    why = "" if cause == verb else f", {cause}"
    return f"{title}: {run} {verb} {WHERE[verb]} {tier}{why}{path}"


def _short(identifier: bytes) -> str:
    return identifier.hex()[:SHORT_ID]
