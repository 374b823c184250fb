"""A store in this process with a worker, and its page."""

from dataclasses import dataclass

from kvstore.core.values.requests import Caller, MatchOptions, ReservationRequest, Sequence
from kvstore.page.site import PageSite
from stores.store_world import PAGE_TOKENS, World


@dataclass
class PageWorld:
    """A store with a worker, and its page."""

    world: World
    site: PageSite
    caller: Caller
    namespace_id: bytes

    def publish(self, *tokens: int, hold: bool = False) -> None:
        """Inserts whole pages of tokens, and hold nothing of them unless told."""
        store, number = self.world.store, next(self.world.numbers)
        pages = len(tokens) // PAGE_TOKENS
        packed = b"".join(each.to_bytes(4, "little") for each in tokens)
        store.reserve(self.caller, self.namespace_id, [ReservationRequest(number, 0, pages)])
        store.insert(self.caller, number, Sequence(packed))
        if not hold:
            store.abort(self.caller, [number])

    def match(self, *tokens: int) -> int:
        """Match tokens, and return the pin that is held."""
        pin_id = next(self.world.numbers)
        packed = b"".join(each.to_bytes(4, "little") for each in tokens)
        self.world.store.match(
            self.caller, self.namespace_id, Sequence(packed), MatchOptions(pin_id)
        )
        return pin_id
