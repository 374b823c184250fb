"""The cache machine's rules about named pins."""

from math import inf

from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from kvstore import errors
from kvstore.core.values.requests import Identity, NamedPinRequest
from machine.state import ADMIN, COUNTS, OWNER, PAGES, SELDOM, TAILS, MachineState
from naive.holds import ModelNamedPin

NAMES = st.sampled_from(["p", "q", "r"])


def pin_refused(
    machine: MachineState, error: type[errors.KVStoreError], request: NamedPinRequest
) -> None:
    """Checks that a pin is refused; that it changed nothing, the invariants check."""
    try:
        machine.cache.pin_prefix(OWNER, machine.namespace_id, request, machine.now)
    except error:
        return
    raise AssertionError(f"a named pin was not refused with {error.__name__}")


@rule(
    data=st.data(),
    name=NAMES,
    pages=PAGES,
    tail=TAILS,
    ttl=st.sampled_from([None, 3.0, 9.0]),
    require_all=SELDOM,
)
def pin_prefix(
    machine: MachineState,
    data: st.DataObject,
    name: str,
    pages: list[int],
    tail: tuple[int, int],
    ttl: float | None,
    *,
    require_all: bool,
) -> None:
    """Pins what is cached of a prefix, or ask again for what a name has."""
    COUNTS["pin_prefix"] += 1
    known = machine.model.named.get(name)
    tokens = machine.sequence(data, pages)
    if known is not None and data.draw(st.booleans()):
        tokens = known.asked
    asked = tokens[: len(tokens) // machine.model.width * machine.model.width]
    request = NamedPinRequest(name, tokens + machine.tokens([], tail), ttl, require_all)
    if known is not None and known.asked != asked:
        pin_refused(machine, errors.IdReused, request)
        return
    page_count = len(asked) // machine.model.width
    path = machine.model.longest(asked, page_count) if known is None else known.path
    if require_all and len(path) < page_count:
        pin_refused(machine, errors.PrefixNotCached, request)
        return
    identity = data.draw(st.sampled_from([OWNER, ADMIN]))
    for _ in range(2):
        pinned = machine.cache.pin_prefix(identity, machine.namespace_id, request, machine.now)
        assert pinned == len(path) * machine.page_tokens, "another path was pinned"
    if path:
        due = inf if ttl is None else machine.now + ttl
        machine.model.named[name] = ModelNamedPin(asked, path, due)


@precondition(lambda machine: machine.model.named)
@rule(name=NAMES, by_stranger=SELDOM)
def unpin_prefix(machine: MachineState, name: str, *, by_stranger: bool) -> None:
    """Ends a named pin, there or not; a stranger ends none."""
    COUNTS["unpin_prefix"] += 1
    if by_stranger:
        try:
            machine.cache.unpin_prefix(Identity("b"), machine.namespace_id, name)
        except errors.NamespaceNotFound:
            return
        raise AssertionError("a stranger saw a namespace")
    machine.cache.unpin_prefix(OWNER, machine.namespace_id, name)
    machine.model.named.pop(name, None)


@precondition(lambda machine: machine.model.named)
@rule(seconds=st.sampled_from([0.5, 3.0, 8.0]))
def expire_named_pins(machine: MachineState, seconds: float) -> None:
    """Time passes, and the named pins past theirs end."""
    COUNTS["expire_named_pins"] += 1
    machine.now += seconds
    ended = {pin.name for pin in machine.cache.expire_named_pins(machine.now)}
    due = {name for name, pin in machine.model.named.items() if pin.due <= machine.now}
    assert ended == due, "a named pin ended at another time"
    for name in due:
        del machine.model.named[name]


@invariant()
def named_pins_are_the_models(machine: MachineState) -> None:
    """The named pins are the model's, each on its own pages, which are still cached."""
    if machine.model.extents:
        pins = machine.cache.visible_named_pins(OWNER, machine.namespace_id)
        held = {pin.name: (pin.token_count // machine.page_tokens, pin.due) for pin in pins}
        named = machine.model.named
        assert held == {name: (len(pin.path), pin.due) for name, pin in named.items()}
        for pin in named.values():
            assert machine.model.attached(pin.path) == pin.path, "a named pin's page is gone"
