"""A trace through the real core: a cache, one worker, no sockets and no bytes."""

from collections import Counter
from itertools import count
from typing import NamedTuple

from kvstore.core.cache import PrefixCache
from kvstore.core.eviction.protocol import EvictionPolicy, PolicyFactory
from kvstore.core.index.protocol import IndexFactory
from kvstore.core.index.radix import RadixIndex
from kvstore.core.values.counters import Counters
from kvstore.core.values.layout import NamespaceIdentity, OpaqueContent, PageLayout
from kvstore.core.values.limits import Limits
from kvstore.core.values.requests import (
    Caller,
    ExpectedReuse,
    Identity,
    MatchOptions,
    ReuseHint,
    Sequence,
)
from kvstore.core.values.tokens import TOKEN_BYTES
from support.replay.tiers import Beyond, ReplayTiers
from support.replay.trace import BLOCK_TOKENS, Oracle, Request

OWNER = Identity("replay")
NAMESPACE_ID = b"replayed as told"
EPOCH = 1
# The last token of a prompt, which nobody inserts: a match covers all tokens
# but one at most.
LAST = bytes(TOKEN_BYTES)
NOTHING = Beyond()


class Replayed(NamedTuple):
    """The results of a replay. ``operations`` counts calls of the core.

    ``by_tier`` counts the tokens that hit, by the tier that had them.
    """

    hit_token_count: int
    operations: int
    counters: Counters
    by_tier: dict[int, int]
    store_write_count: int = 0


class Replay:
    """One cache of ``capacity`` pages in tier 1, each a block of the trace, and the other tiers.

    A block stands for a page of equal tokens, its id. Ids are chained, so two blocks are one page
    exactly if their ids are equal, for any page size.
    """

    def __init__(
        self,
        capacity: int,
        policy: PolicyFactory,
        page_tokens: int,
        index: IndexFactory = RadixIndex,
        beyond: Beyond = NOTHING,
    ) -> None:
        self._cache = PrefixCache(
            EPOCH,
            Limits(),
            policy,
            index=index,
            tier_policy=beyond.policy if beyond.lower else None,
            page_stores=beyond.page_stores,
        )
        self._caller = Caller(OWNER, b"a lease of 16 by", b"and its secret", EPOCH)
        self._page_tokens = page_tokens
        self._numbers = count(1)
        cache, caller = self._cache, self._caller
        cache.grant(caller, ttl=None, display_name="replay", features=(), now=0.0)
        cache.bind(caller, process_id=1, pid=1, uid=1)
        layout = PageLayout(page_tokens, 64, 1, OpaqueContent(b"replay", divides_by_token=False))
        cache.open_namespace(caller, NamespaceIdentity(b"trace"), layout, NAMESPACE_ID, 0.0)
        for arena_id, slots in zip(cache.arenas, (capacity, beyond.lower), strict=False):
            cache.add_extent(arena_id, arena_id, slots)
        cache.acknowledge(1, cache.extents_owed(1))
        self._tiers = ReplayTiers(cache, caller, NAMESPACE_ID, beyond)
        self._by_tier: Counter[int] = Counter()
        self._hit = self._operations = 0

    @property
    def policy(self) -> EvictionPolicy:
        """The policy of the one arena."""
        return self._cache.namespaces[NAMESPACE_ID].arena.policy

    def run(self, requests: list[Request], oracle: Oracle | None = None) -> Replayed:
        """Replays all requests, one after the other."""
        for number, request in enumerate(requests):
            self.serve(number, request, oracle)
        return self.replayed()

    def serve(self, number: int, request: Request, oracle: Oracle | None = None) -> None:
        """Replays one request, and then the store's work beside it."""
        blocks, calls = self._ask(number, request, oracle)
        self._hit += request.tokens_of(blocks)
        self._operations += calls
        self._tiers.settle()

    def replayed(self) -> Replayed:
        """Returns the results so far."""
        store = self._tiers.store
        written = store.write_count if store else 0
        return Replayed(self._hit, self._operations, self._cache.counters, self._by_tier, written)

    def _ask(self, number: int, request: Request, oracle: Oracle | None) -> tuple[int, int]:
        """Matches, inserts the rest and releases. Returns the blocks that hit, and the calls."""
        cache, caller, now = self._cache, self._caller, request.time
        width = self._page_tokens * TOKEN_BYTES
        ids = request.ids
        tokens = b"".join(each.to_bytes(TOKEN_BYTES, "little") * self._page_tokens for each in ids)
        pin_id, reservation_id = next(self._numbers), next(self._numbers)
        sequence, options = Sequence(tokens + LAST), MatchOptions(pin_id)
        found = self._tiers.bring(sequence, options)
        match, grant = cache.acquire(
            caller,
            NAMESPACE_ID,
            sequence,
            options,
            reservation_id=reservation_id,
            total_page_count=len(ids),
            now=now,
        )
        matched = match.matched_token_count // self._page_tokens
        self._count(request, matched, found)
        calls = 3
        base = pin_id if matched else None
        if grant is not None and matched < len(ids):
            runs = [(len(ids), ExpectedReuse.UNKNOWN)]
            if oracle is not None:
                runs = oracle.runs(number, matched)
            start = matched
            for end, expected in runs:
                part = Sequence(
                    tokens[start * width : end * width], start * self._page_tokens, base
                )
                hint = ReuseHint(expected) if oracle is not None else None
                cache.insert(caller, reservation_id, part, now, hint=hint)
                start, base, calls = end, None, calls + 1
        cache.abort(caller, [reservation_id], now)
        cache.release(caller, [pin_id], now)
        return matched, calls

    def _count(self, request: Request, matched: int, found: dict[int, int]) -> None:
        """Counts the tokens of a hit by tier. A short last block counts for the nearest tier."""
        left = request.tokens_of(matched)
        for tier in (3, 2):
            tokens = min(found.get(tier, 0) * BLOCK_TOKENS, left)
            self._by_tier[tier] += tokens
            left -= tokens
        self._by_tier[1] += left
