"""The cache machine's rules about who is told what happens."""

from collections import Counter
from collections.abc import Iterable

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant

from kvstore.core.pool.pages import EVENT_DIGEST_BYTES
from kvstore.core.values.event_log import (
    Event,
    LeaseEvent,
    LeaseStep,
    NamespaceEvent,
    NamespaceStep,
    PagesChange,
    PagesEvent,
)
from machine.disk_writes import digest_of
from machine.state import COUNTS, OWNER, MachineState


@initialize(first=st.sampled_from([0, 10, 20, 1000]))
def watch_for_a_while(machine: MachineState, first: int) -> None:
    """Somebody watches some steps: only then are paths named."""
    machine.watched_steps = range(first, first + 20)


@invariant()
def what_was_told_is_what_is_there(machine: MachineState) -> None:
    """Pages by their place in sequences, leases and namespaces; and paths by their digests."""
    machine.steps += 1
    if machine.steps == machine.watched_steps.start + 1:
        machine.cache.events.begin(machine.watch, with_history=False)
    elif machine.steps == machine.watched_steps.stop:
        machine.cache.events.end(machine.watch)
    events = [each for each in machine.cache.events.recent if OWNER.sees(each.tenant)]
    machine.cache.events.recent.clear()
    width = machine.model.width
    if machine.namespace_id in machine.cache.namespaces:
        now = _event_digests(machine, machine.model.cached)
        fresh = _event_digests(machine, machine.model.published)
        _check_digests(machine, events, now, fresh)
        machine.every_digest |= now | fresh
    machine.model.published.clear()
    for each in events:
        _take(machine, each)
    there = Counter(-(-len(prefix) // width) - 1 for prefix in machine.model.cached)
    told = Counter({page: count for page, count in machine.told_pages.items() if count})
    assert told == there, "what was told of pages is not what is there"
    assert machine.told_leases == set(machine.model.leases), "leases came or went untold"
    mine = {key for key, each in machine.cache.namespaces.items() if OWNER.sees(each.tenant)}
    assert machine.told_namespaces == mine, "namespaces came or went untold"


def _take(machine: MachineState, event: Event) -> None:
    match event:
        case PagesEvent(change=PagesChange.INSERTED | PagesChange.REMOVED):
            added = 1 if event.change is PagesChange.INSERTED else -1
            assert event.page_count > 0
            for page in range(event.start_page, event.start_page + event.page_count):
                machine.told_pages[page] += added
        case LeaseEvent(step=LeaseStep.GRANTED):
            machine.told_leases.add(event.lease_id)
        case LeaseEvent(step=LeaseStep.ENDED):
            machine.told_leases.remove(event.lease_id)
        case NamespaceEvent(step=NamespaceStep.OPENED):
            machine.told_namespaces.add(event.namespace_id)
        case NamespaceEvent():
            machine.told_namespaces.remove(event.namespace_id)


def _event_digests(machine: MachineState, prefixes: Iterable[bytes]) -> set[bytes]:
    """Returns how events name the last pages of prefixes."""
    return {digest_of(machine, each)[:EVENT_DIGEST_BYTES] for each in prefixes}


def _check_digests(
    machine: MachineState, events: list[Event], now: set[bytes], fresh: set[bytes]
) -> None:
    """Checks that events name what came as what is there, and what went as what was.

    ``fresh`` is what was published in this step, some of which may be gone already. Such pages
    come as one run, under the last one's name, and may go one by one.
    """
    pages = [each for each in events if isinstance(each, PagesEvent) and each.path_digest]
    came = {each.path_digest for each in pages if each.change is PagesChange.INSERTED}
    went = {each.path_digest for each in pages if each.change is PagesChange.REMOVED}
    COUNTS["paths told"] += len(pages)
    if not went:
        assert came <= now, "a page is told by another path"
    assert came <= now | fresh, "a page that came and went is told by another path"
    assert went <= machine.every_digest | now | fresh, "a page that went is told by another path"
