"""A trace on several hosts that share one remote engine, each host with a cache of its own."""

from collections.abc import Callable
from enum import StrEnum
from typing import Final, NamedTuple

from kvstore.core.eviction.protocol import PolicyFactory
from kvstore.core.index.protocol import IndexFactory
from kvstore.core.pool.tier_policy import TierPolicy
from kvstore.core.values.counters import Counters
from kvstore.storage.write_admission import FirstTouch, SecondTouch, WriteAdmission
from support.replay.core import Replay
from support.replay.pool import HostView, RemotePool
from support.replay.slab import REMEMBERED
from support.replay.tiers import Beyond
from support.replay.trace import Oracle, Request

# A multiplier that mixes the ids of blocks (Knuth, 6.4).
MIXER: Final = 2_654_435_761
LOW: Final = 1 << 32


class RemoteWrite(StrEnum):
    """The pages that hosts write to the engine."""

    OFF = "off"
    THROUGH = "through"
    """Each page, at its first use."""
    SECOND_TOUCH = "second-touch"
    """A page that the same host used before."""


class Route(StrEnum):
    """The host of each request."""

    ROUND_ROBIN = "round-robin"
    PREFIX = "prefix"
    """By the first two blocks. All requests of the public trace share the first one."""


class HostsReplayed(NamedTuple):
    """The results of a replay on several hosts, summed over them. Tokens are those that hit."""

    hit_token_count: int
    remote_token_count: int
    operations: int
    counters: Counters
    remote_writes: int
    remote_reads: int


class HostsReplay:
    """Hosts with ``capacity`` pages each, and one engine with ``remote`` pages for all."""

    def __init__(  # noqa: PLR0913 - each is an option of the benchmark
        self,
        hosts: int,
        capacity: int,
        policy: PolicyFactory,
        page_tokens: int,
        index: IndexFactory,
        *,
        lower: int = 0,
        tier_policy: TierPolicy | None = None,
        remote: int,
        write: RemoteWrite,
        route: Route,
    ) -> None:
        self._pool = RemotePool(remote)
        self._hosts = []
        for _ in range(hosts):
            admission = _admission(write, REMEMBERED * (remote + capacity + lower))
            shared = HostView(self._pool, admission) if remote else None
            beyond = Beyond(lower, 0, tier_policy or TierPolicy(), shared)
            self._hosts.append(Replay(capacity, policy, page_tokens, index, beyond))
        self._place = ROUTES[route]

    def run(self, requests: list[Request], oracle: Oracle | None = None) -> HostsReplayed:
        """Replays all requests, one after the other, each on its host."""
        for number, request in enumerate(requests):
            self._pool.now = request.time
            host = self._hosts[self._place(number, request) % len(self._hosts)]
            host.serve(number, request, oracle)
        results = [each.replayed() for each in self._hosts]
        counters = Counters()
        for each in results:
            counters.add(each.counters)
        return HostsReplayed(
            sum(each.hit_token_count for each in results),
            sum(each.by_tier[3] for each in results),
            sum(each.operations for each in results),
            counters,
            self._pool.write_count,
            self._pool.read_count,
        )


def _admission(write: RemoteWrite, remembered: int) -> WriteAdmission | None:
    match write:
        case RemoteWrite.OFF:
            return None
        case RemoteWrite.THROUGH:
            return FirstTouch()
        case RemoteWrite.SECOND_TOUCH:
            return SecondTouch(remembered)


def _in_turn(number: int, request: Request) -> int:
    del request
    return number


def _by_prefix(number: int, request: Request) -> int:
    del number
    block = request.ids[:2][-1] if request.ids else 0
    # The high bits, since the low ones of a product are those of its factors.
    return block * MIXER % LOW >> 16


ROUTES: Final[dict[Route, Callable[[int, Request], int]]] = {
    Route.ROUND_ROBIN: _in_turn,
    Route.PREFIX: _by_prefix,
}
