"""The longest cached prefix of a sequence, for a lease. Nothing here changes state."""

from typing import NamedTuple

from kvstore.core.index.condemned import attached_end, has_left
from kvstore.core.index.node import Position
from kvstore.core.index.radix import ancestor, path_tokens
from kvstore.core.leases.holds import Hold, covered_position
from kvstore.core.leases.lease import Lease
from kvstore.core.pool.namespace import Namespace
from kvstore.core.pool.placement import FIRST, Tiers, extended, nearest, nearest_usable
from kvstore.core.values.requests import InFlight, MatchOptions, Sequence
from kvstore.core.values.slots import INDEX_BITS
from kvstore.core.values.tokens import TOKEN_BYTES
from kvstore.core.verbs.group_windows import FoundGroup, fit, tier_for


class Found(NamedTuple):
    """The cached part of a sequence: whole pages through ``at``, and what lies beyond.

    ``source`` is the end of the page to copy from, of which ``valid_token_count`` tokens
    belong to the sequence. ``tiers`` are those of all pages through the last. ``groups`` are the
    pages of KV cache groups that were asked for.
    """

    at: Position
    source: Position | None = None
    valid_token_count: int = 0
    next_token: int | None = None
    tiers: Tiers = None
    groups: tuple[FoundGroup, ...] = ()

    @property
    def last(self) -> Position:
        """The deepest page found."""
        return self.at if self.source is None else self.source


def matchable_pages(count: int, page_tokens: int) -> int:
    """Returns how many whole pages of a sequence of ``count`` tokens may match.

    At most ``count - 1`` tokens match, so that an engine has one left to run. Always rounds
    down to whole pages.
    """
    return max(count - 1, 0) // page_tokens


def longest(
    lease: Lease,
    namespace: Namespace,
    sequence: Sequence,
    *,
    wants_source: bool,
    wants_next_token: bool,
    anywhere: bool = False,
) -> Found:
    """Returns the longest cached prefix of a sequence, which is shorter than the sequence.

    It is the whole sequence if the next token is wanted and stored. It ends before the first
    page in an extent that some process of the lease has not mapped. With ``anywhere`` it goes
    on there, and tells no tiers. If the base's path was removed, only the rest of that path
    counts, without a source page.
    """
    # Most leases have mapped all memory, and need no look at the extent of each page.
    in_one_tier = namespace.lower_arena is None
    sees_all = anywhere or (in_one_tier and lease.has_all_of(namespace.arena))
    reader = None if sees_all else lease
    layout = namespace.layout
    wants_source = wants_source and layout.divides_by_token
    page_tokens = layout.page_tokens
    length = sequence.position + len(sequence.tokens) // TOKEN_BYTES
    pages, tiers = length // page_tokens, None
    named = sequence.base_pin_id is not None or sequence.base_reservation_id is not None
    if named or sequence.position:
        at = cached_end(lease, namespace, sequence, pages)
    else:
        index = namespace.index
        at = index.descend(Position(index.root, 0), sequence.tokens, pages)
    if reader is not None:
        at, tiers = _clip(reader, namespace, at)
    if wants_next_token:
        found = _whole(reader, namespace, at, tiers, sequence, length)
        if found is not None and (wants_source or found.source is None):
            return found
    matchable = matchable_pages(length, page_tokens)
    node, pages = at
    depth = node.start + pages
    if depth > matchable:
        at, depth = ancestor(at, matchable), matchable
    ends = at.pages == len(at.node.slots) and not at.node.children
    if not wants_source or ends or depth * page_tokens >= length - 1:
        return Found(at, None, 0, None, tiers)
    rest = rest_of(namespace, depth, sequence, length - 1)
    return _with_source(reader, namespace, at, tiers, rest)


def find(
    lease: Lease,
    namespace: Namespace,
    sequence: Sequence,
    options: MatchOptions,
    *,
    anywhere: bool = False,
) -> Found:
    """Returns what a match with some options finds, as :func:`longest` does.

    With groups it ends at the deepest page where each group has its whole window, without a
    source page and without a next token.
    """
    if not options.groups:
        return longest(
            lease,
            namespace,
            sequence,
            wants_source=options.source_pin_id is not None,
            wants_next_token=options.accept_next_token,
            anywhere=anywhere,
        )
    found = longest(
        lease,
        namespace,
        sequence,
        wants_source=False,
        wants_next_token=False,
        anywhere=anywhere,
    )
    tier_of = tier_for(None if anywhere else lease, namespace)
    at, groups = fit(namespace, found.at, options.groups, options.group_start_page, tier_of)
    return found._replace(at=at, groups=groups)


def cached_end(
    lease: Lease | None, namespace: Namespace, sequence: Sequence, pages: int
) -> Position:
    """Returns the end of the cached whole pages among the first ``pages`` of a sequence.

    Looks at all memory. Without a lease the sequence has no base. Raises the errors of
    ``Lease.base_of`` and ``covered_position``.
    """
    base = None if lease is None else lease.base_of(namespace, sequence)
    depth = namespace.page_position(sequence.position)
    start = covered_position(namespace, base, depth)
    if base is not None and has_left(start.node):
        return _attached_end(base, namespace)
    return namespace.index.descend(start, sequence.tokens, pages - depth)


def _attached_end(hold: Hold, namespace: Namespace) -> Position:
    """Returns the end of the part of a hold's path that is still in the index."""
    last = hold.anchors[-1]
    if last.node.detached:
        return Position(namespace.index.root, 0)
    return attached_end(Position(last.node, last.pages))


def _clip(lease: Lease, namespace: Namespace, at: Position) -> tuple[Position, Tiers]:
    """Shortens a path to the pages that all processes of the lease have mapped in some tier.

    Picks the lowest tier that has a mapped copy of a page.
    """
    first, lower = _usable(lease, namespace)
    indexed = [each.indexed for each in namespace.arenas()]
    if [first, lower][: len(indexed)] == indexed:
        return at, nearest(at)
    return nearest_usable(at, first, lower)


def _usable(lease: Lease, namespace: Namespace) -> tuple[set[int], set[int]]:
    """Returns the extents of tier 1, and those of tier 2, that the lease has mapped."""
    lower = namespace.lower_arena
    return (
        lease.usable_extents(namespace.arena),
        set() if lower is None else lease.usable_extents(lower),
    )


def rest_of(namespace: Namespace, depth: int, sequence: Sequence, end: int) -> bytes:
    """Returns the tokens of the page after ``depth`` pages, through token ``end`` at most.

    Returns nothing if they are before the request's position.
    """
    page_tokens = namespace.layout.page_tokens
    start = depth * page_tokens - sequence.position
    stop = min(start + page_tokens, end - sequence.position)
    return sequence.tokens[start * TOKEN_BYTES : stop * TOKEN_BYTES] if 0 <= start < stop else b""


def whole_tokens(namespace: Namespace, at: Position, sequence: Sequence) -> bytes | None:
    """Returns a sequence's tokens from its beginning. Its cached part ends ``at``.

    Returns None if its base's path was removed from before its position.
    """
    above = sequence.position // namespace.layout.page_tokens
    if not above:
        return sequence.tokens
    if at.depth < above:
        return None
    return path_tokens(ancestor(at, above), namespace.width) + sequence.tokens


def in_flight_beyond(
    namespace: Namespace, at: Position, sequence: Sequence, *, now: float, idle: float
) -> InFlight | None:
    """Returns what an open reservation is about to compute of a sequence after ``at``, or None.

    The reservation must have advanced within ``idle`` seconds. Counts only pages that may
    match once they are there.
    """
    prefills, page_tokens, depth = namespace.prefills, namespace.layout.page_tokens, at.depth
    length = sequence.position + len(sequence.tokens) // TOKEN_BYTES
    end = matchable_pages(length, page_tokens)
    if depth >= end or not prefills.may_go_on(depth, rest_of(namespace, depth, sequence, length)):
        return None
    tokens = whole_tokens(namespace, at, sequence)
    assert tokens is not None  # the page is in it
    found = prefills.find(tokens, depth, end, since=now - idle)
    if found is None:
        return None
    prefill, agreed = found
    since = now - prefill.advanced_at
    return InFlight(agreed * page_tokens, prefill.at * page_tokens, since)


def _with_source(
    lease: Lease | None, namespace: Namespace, at: Position, tiers: Tiers, rest: bytes
) -> Found:
    """Adds the page to copy ``rest``'s leading tokens from, if the lease can read one."""
    found = namespace.index.nearest(at, rest) if rest else None
    tier = None if found is None else _tier_of(lease, namespace, found[0])
    if found is None or tier is None:
        return Found(at, tiers=tiers)
    page, valid = found
    return Found(at, page, valid, tiers=extended(tiers, at.depth, page.depth, tier))


def _tier_of(lease: Lease | None, namespace: Namespace, page: Position) -> int | None:
    """Returns the lowest tier in which the lease can read a page, or None.

    Without a lease, which then can read every page, it is tier 1.
    """
    if lease is None:
        return FIRST
    usable = _usable(lease, namespace)
    for copies, extents in zip(page.node.leaves(), usable, strict=False):
        if copies.slots[page.pages - 1] >> INDEX_BITS in extents:
            return copies.tier
    return None


def _whole(
    lease: Lease | None,
    namespace: Namespace,
    at: Position,
    tiers: Tiers,
    sequence: Sequence,
    length: int,
) -> Found | None:
    """Returns the whole sequence, if it is cached and its next token is stored."""
    depth = at.depth
    if depth != length // namespace.layout.page_tokens:
        return None
    tail = rest_of(namespace, depth, sequence, length)
    next_token = at.find_next_token(tail)
    if next_token is None:
        return None
    if not tail:
        return Found(at, next_token=next_token, tiers=tiers)
    found = _with_source(lease, namespace, at, tiers, tail)
    if found.valid_token_count * TOKEN_BYTES != len(tail):
        return None
    return found._replace(next_token=next_token)
