"""The cache machine's rules about named pins."""

from math import inf

from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from kvstore import errors
from kvstore.core.values.requests import Identity, NamedPinRequest
from machine.state import ADMIN, COUNTS, OWNER, PAGES, SELDOM, TAILS, MachineState
from naive.holds import ModelNamedPin

NAMES = st.sampled_from(["p", "q", "r"])


class NamedPinRules(MachineState):
    """Operators keep prefixes cached, and let them go."""

    def pin_refused(self, error: type[errors.KVStoreError], request: NamedPinRequest) -> None:
        """Checks that a pin is refused; that it changed nothing, the invariants check."""
        try:
            self.cache.pin_prefix(OWNER, self.namespace_id, request, self.now)
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
        self,
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
        known = self.model.named.get(name)
        tokens = self.sequence(data, pages)
        if known is not None and data.draw(st.booleans()):
            tokens = known.asked
        asked = tokens[: len(tokens) // self.model.width * self.model.width]
        request = NamedPinRequest(name, tokens + self.tokens([], tail), ttl, require_all)
        if known is not None and known.asked != asked:
            self.pin_refused(errors.IdReused, request)
            return
        page_count = len(asked) // self.model.width
        path = self.model.longest(asked, page_count) if known is None else known.path
        if require_all and len(path) < page_count:
            self.pin_refused(errors.PrefixNotCached, request)
            return
        identity = data.draw(st.sampled_from([OWNER, ADMIN]))
        for _ in range(2):
            pinned = self.cache.pin_prefix(identity, self.namespace_id, request, self.now)
            assert pinned == len(path) * self.page_tokens, "another path was pinned"
        if path:
            due = inf if ttl is None else self.now + ttl
            self.model.named[name] = ModelNamedPin(asked, path, due)

    @precondition(lambda self: self.model.named)
    @rule(name=NAMES, by_stranger=SELDOM)
    def unpin_prefix(self, name: str, *, by_stranger: bool) -> None:
        """Ends a named pin, there or not; a stranger ends none."""
        COUNTS["unpin_prefix"] += 1
        if by_stranger:
            try:
                self.cache.unpin_prefix(Identity("b"), self.namespace_id, name)
            except errors.NamespaceNotFound:
                return
            raise AssertionError("a stranger saw a namespace")
        self.cache.unpin_prefix(OWNER, self.namespace_id, name)
        self.model.named.pop(name, None)

    @precondition(lambda self: self.model.named)
    @rule(seconds=st.sampled_from([0.5, 3.0, 8.0]))
    def expire_named_pins(self, seconds: float) -> None:
        """Time passes, and the named pins past theirs end."""
        COUNTS["expire_named_pins"] += 1
        self.now += seconds
        ended = {pin.name for pin in self.cache.expire_named_pins(self.now)}
        due = {name for name, pin in self.model.named.items() if pin.due <= self.now}
        assert ended == due, "a named pin ended at another time"
        for name in due:
            del self.model.named[name]

    @invariant()
    def named_pins_are_the_models(self) -> None:
        """The named pins are the model's, each on its own pages, which are still cached."""
        if self.model.extents:
            pins = self.cache.visible_named_pins(OWNER, self.namespace_id)
            held = {pin.name: (pin.token_count // self.page_tokens, pin.due) for pin in pins}
            named = self.model.named
            assert held == {name: (len(pin.path), pin.due) for name, pin in named.items()}
            for pin in named.values():
                assert self.model.attached(pin.path) == pin.path, "a named pin's page is gone"
