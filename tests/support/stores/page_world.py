"""A store in this process with a worker, and the page's site over it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from kvstore.core.values.requests import (
    Caller,
    Identity,
    MatchOptions,
    ReservationRequest,
    Sequence,
)
from kvstore.errors import KVStoreError
from kvstore.rpc.wire import report
from kvstore.v1 import lease_pb2, store_pb2
from kvstore_client.admin import Admin
from kvstore_client.errors import StoreRefused
from kvstore_ctl.page.page_routes import PageSite
from kvstore_ctl.page.store_feed import Feed
from stores.store_world import PAGE_TOKENS, World

ADMIN = Identity("operator", admin=True)
Result = TypeVar("Result")


@dataclass
class WorldAdmin:
    """The calls of ``Admin`` that the page makes, answered by a store in this process.

    ``between`` is called between two nodes of a list.
    """

    world: World
    between: Callable[[], None] = lambda: None

    def stats(self) -> store_pb2.GetStatsResponse:
        """Returns one snapshot."""
        store = self.world.store
        return report.stats_message(
            store.stats(ADMIN),
            uptime=store.uptime(),
            requests=store.traffic.requests,
            tier_3=report.tier_3_message(store.tier3.use(), whole=True),
            tier_bytes=store.tier_bytes,
            succession=report.succession_message(store.succession.use(), whole=True),
        )

    def prefixes(
        self, namespace_id: bytes, *, max_tokens: int = 0
    ) -> Iterator[store_pb2.PrefixInfo]:
        """Yields the nodes of a tree, each by a call of its own."""
        after = 0
        while found := self.world.store.prefixes(
            ADMIN, namespace_id, after=after, count=1, max_tokens=max_tokens
        ):
            yield report.prefix_message(found[0])
            after = found[0].node_id
            self.between()

    def holds(self, lease: lease_pb2.LeaseInfo) -> list[lease_pb2.HoldInfo]:
        """Returns what a lease holds."""
        found = self.world.store.holds(ADMIN, lease.lease_id, lease.tenant)
        return [report.hold_message(each) for each in found]


@dataclass
class WorldConnection:
    """A connection to a store in this process; ``failure`` is raised instead of an answer."""

    admin: WorldAdmin
    failure: Exception | None = None

    def ask(self, call: Callable[[Admin], Result]) -> Result:
        """Returns the result of a call; raises as the client does."""
        if self.failure is not None:
            raise self.failure
        try:
            return call(cast("Admin", self.admin))
        except KVStoreError as error:
            raise StoreRefused.by_reason[error.reason()](str(error)) from error


@dataclass
class PageWorld:
    """A store with a worker, and the site of its page."""

    world: World
    caller: Caller
    namespace_id: bytes
    shows_tokens: bool = False
    feed: Feed = field(init=False)
    site: Any = field(init=False)

    def __post_init__(self) -> None:
        self.connection = WorldConnection(WorldAdmin(self.world))
        self.feed = Feed(self.connection, self.world.clock, shows_tokens=self.shows_tokens)
        self.site = PageSite(self.feed).app()

    def publish(self, *tokens: int, hold: bool = False) -> None:
        """Inserts whole pages of tokens. The reservation ends unless ``hold``."""
        store, number = self.world.store, next(self.world.numbers)
        pages = len(tokens) // PAGE_TOKENS
        packed = b"".join(each.to_bytes(4, "little") for each in tokens)
        store.reserve(self.caller, self.namespace_id, [ReservationRequest(number, 0, pages)])
        store.insert(self.caller, number, Sequence(packed))
        if not hold:
            store.abort(self.caller, [number])

    def match(self, *tokens: int) -> int:
        """Matches tokens, and returns the pin that is held."""
        pin_id = next(self.world.numbers)
        packed = b"".join(each.to_bytes(4, "little") for each in tokens)
        self.world.store.match(
            self.caller, self.namespace_id, Sequence(packed), MatchOptions(pin_id)
        )
        return pin_id
