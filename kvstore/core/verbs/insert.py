"""Insert: publishes the pages of a reservation, and stores next tokens."""

from array import array
from collections.abc import Sequence as Items
from typing import NamedTuple

from kvstore.core.cache_state import CacheState
from kvstore.core.index.condemned import has_left
from kvstore.core.index.node import Position
from kvstore.core.journal.journal import Journal
from kvstore.core.journal.records import HAS_CHECKSUMS, INSERTED, NO_PAGE, PAGES_FORM
from kvstore.core.leases.holds import Hold, Reservation, covered_position
from kvstore.core.leases.journaling import generations_in, write_reservation
from kvstore.core.leases.lease import Lease
from kvstore.core.pool.pages import begun, publish
from kvstore.core.pool.placement import FIRST, joined, nearest
from kvstore.core.values.group_pages import require_sequence
from kvstore.core.values.requests import (
    NO_HINT,
    Caller,
    GroupInsert,
    Hint,
    Inserted,
    ReuseHint,
    Sequence,
    SlotMoves,
)
from kvstore.core.values.runs import Run, runs_of
from kvstore.core.values.slots import Slots
from kvstore.core.values.tokens import TOKEN_BYTES
from kvstore.core.verbs.lookup import whole_tokens
from kvstore.core.verbs.reclaim import Reclaiming
from kvstore.core.verbs.slot_moves import (
    NO_MOVES,
    GroupPublishing,
    PlannedMoves,
    move_slots,
    plan_moves,
    require_parents,
    reservation_for,
)
from kvstore.errors import (
    IdReused,
    InsertExceedsReservation,
    InvalidField,
    NamespaceNotFound,
    ParentDetached,
    ParentNotCovered,
)


class Published(NamedTuple):
    """The result of an insert, in pages. ``at`` is the end of the last page.

    ``runs`` are the slots of the pages that were published, if a journal has them.
    """

    at: Position
    inserted: int
    duplicates: int
    superseded: int
    returned: int
    runs: tuple[Run, ...] = ()


class Inserting:
    """Publishes the pages of reservations."""

    def __init__(self, state: CacheState, reclaiming: Reclaiming) -> None:
        self._state = state
        self._reclaiming = reclaiming
        self._groups = GroupPublishing(state, reclaiming)

    def insert(  # noqa: C901 - one step after the other
        self,
        caller: Caller,
        reservation_id: int,
        sequence: Sequence,
        now: float,
        *,
        next_token: int | None = None,
        checksums: Items[int] = (),
        hint: ReuseHint | None = None,
        moves: SlotMoves | None = None,
    ) -> Inserted:
        """Publishes the next pages of a reservation. Pages inserted before are answered again.

        Raises IdReused if those are on another path than the base that ``sequence`` names.

        The last page may be partial; then nothing may follow it. ``next_token`` is stored at
        the end of ``sequence``. ``checksums`` has one entry for each page of ``sequence``,
        zero for none, or is empty. The store keeps those of pages that it publishes now.
        ``hint`` is what the caller expects of these pages. ``moves`` are slots of another
        reservation, for the last of these pages and for pages of KV cache groups. With them
        the reservation is made if it does not exist.
        """
        lease = self._state.member(caller)
        length = self._state.length(sequence.tokens, sequence.position)
        if moves is None:
            reservation, plan = lease.reservation(reservation_id), NO_MOVES
        else:
            reservation = reservation_for(lease, reservation_id, sequence, moves, now)
            plan = plan_moves(lease, reservation, moves, length)
        namespace = reservation.namespace
        first, end = insert_range(reservation, sequence, length, len(plan.offsets))
        if checksums and len(checksums) != end - first:
            raise other_checksums(checksums, end - first)
        cut = 0 if reservation.base is None else inserted_bytes(lease, reservation, sequence)
        place: tuple[Hold | None, Position] | None = None
        if cut < len(sequence.tokens):
            place = place_of(lease, reservation, sequence, cut)
        elif next_token is not None:
            require_covered(lease, reservation, sequence, length)
        if plan.pages:
            covered = None if place is None else length // namespace.layout.page_tokens
            base = base_of(lease, reservation, sequence)
            require_parents(namespace, base, covered, plan.pages)
            lease.owner.require_group_room(len(plan.pages))
        # From here on nothing is refused.
        if moves is not None:
            move_slots(lease, reservation, plan)
        expected = NO_HINT if hint is None else hint.at(now)
        runs: tuple[Run, ...] = ()
        if place is not None:
            fresh = checksums[reservation.whole_end - first :]
            runs = self._publish(lease, reservation, sequence, place, cut, fresh, expected, now)
        if plan.pages:
            self._publish_groups(lease, reservation, sequence, plan, expected, now)
        if self._state.journal is not None:
            write_rest(self._state.journal, lease, reservation, moves)
        if next_token is not None:
            store_next_token(lease, reservation, sequence, next_token)
        flags = reservation.published[first - reservation.start_page : end - reservation.start_page]
        runs = runs or runs_of(reservation.slots()[first:end], namespace.extents)
        groups = () if moves is None else published_groups(reservation, moves.groups)
        return Inserted(runs, sum(flags), groups)

    def _publish_groups(
        self,
        lease: Lease,
        reservation: Reservation,
        sequence: Sequence,
        plan: PlannedMoves,
        hint: Hint,
        now: float,
    ) -> None:
        """Publishes pages of groups under the path, now that it is as far as it gets."""
        namespace = reservation.namespace
        namespace.arena.policy.now = self._state.events.now = now
        base = base_of(lease, reservation, sequence)
        if reservation.base is None:
            reservation.base = sequence.base_pin_id, sequence.base_reservation_id
        inserted, duplicates, returned = self._groups.publish(reservation, base, plan, hint)
        lease.owner.group_page_count += len(plan.pages)
        for counters in (self._state.counters, namespace.counters, lease.counters):
            counters.inserted_page_count += inserted
            counters.duplicate_page_count += duplicates
            counters.returned_page_count += returned

    def _publish(
        self,
        lease: Lease,
        reservation: Reservation,
        sequence: Sequence,
        place: tuple[Hold | None, Position],
        cut: int,
        checksums: Items[int],
        hint: Hint,
        now: float,
    ) -> tuple[Run, ...]:
        """Publishes a sequence's pages from byte ``cut`` on, and tells the other tiers.

        ``place`` is that of :func:`place_of`. Returns the slots of the sequence if they are known
        and all of it was published.
        """
        state, namespace, tokens = self._state, reservation.namespace, sequence.tokens[cut:]
        namespace.arena.policy.now = state.events.now = now
        published = publish_next(reservation, *place, tokens, checksums, hint)
        if reservation.base is None:
            reservation.base = sequence.base_pin_id, sequence.base_reservation_id
        state.touch(published.at)
        note_advance(reservation, sequence, tokens, now)
        if state.wanted is not None:
            state.wanted.inserted(published.at)
        if state.disk is not None:
            known = published.at.depth - published.inserted - published.duplicates
            state.disk.touched(published.at, known)
        if namespace.arena.retiring:
            self._reclaiming.expel(published.at)
        for counters in (state.counters, namespace.counters, lease.counters):
            counters.inserted_page_count += published.inserted
            counters.duplicate_page_count += published.duplicates
            counters.superseded_page_count += published.superseded
            counters.returned_page_count += published.returned
        return () if cut or published.duplicates else published.runs


def published_groups(
    reservation: Reservation, groups: Items[GroupInsert]
) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """Returns each group with the positions of its pages that were published."""
    published = reservation.group_pages
    return tuple(
        (group, tuple(each for each in positions if published[group, each]))
        for group, positions, _, _ in groups
    )


def insert_range(
    reservation: Reservation, sequence: Sequence, length: int, moving: int = 0
) -> tuple[int, int]:
    """Returns the first page of an insert, and the page after its last.

    ``length`` is that of the whole sequence, in tokens. The insert brings ``moving`` slots, which
    the reservation does not have yet. Raises InvalidField,
    InsertExceedsReservation or ParentNotCovered. Raises NamespaceNotFound if the
    reservation's namespace was deleted.
    """
    if reservation.namespace.deleted:
        raise NamespaceNotFound(namespace_id=reservation.namespace.namespace_id.hex())
    layout = reservation.namespace.layout
    first = reservation.namespace.page_position(sequence.position)
    if length % layout.page_tokens and not layout.divides_by_token:
        raise InvalidField(field="tokens", value=length, why="not in whole pages")
    end = -(-length // layout.page_tokens)
    reserved_end = reservation.start_page + len(reservation.reserved) + moving
    lost = reservation.published.find(1, reservation.inserted)
    if lost >= 0:
        reserved_end = reservation.start_page + lost
    if first < reservation.start_page or end > reserved_end:
        raise InsertExceedsReservation(
            page_position=first, page_count=end - first, reserved_end=reserved_end
        )
    if first > reservation.whole_end:
        raise ParentNotCovered(page_position=first, covered=reservation.whole_end)
    return first, end


def other_checksums(checksums: Items[int], page_count: int) -> InvalidField:
    """Returns the error of an insert without a checksum for each page."""
    why = f"{page_count} pages are inserted"
    value = f"{len(checksums)} checksums"
    return InvalidField(field="page_checksums", value=value, why=why)


def inserted_bytes(lease: Lease, reservation: Reservation, sequence: Sequence) -> int:
    """Returns how many of a sequence's bytes a reservation has inserted.

    Raises IdReused if it inserted other tokens, besides the errors of :func:`require_same_base`.
    """
    require_same_base(lease, reservation, sequence)
    known = reservation.token_end(reservation.namespace.layout.page_tokens) - sequence.position
    cut = min(max(known, 0) * TOKEN_BYTES, len(sequence.tokens))
    if cut:
        start = sequence.position * TOKEN_BYTES
        if reservation.tokens()[start : start + cut] != sequence.tokens[:cut]:
            raise IdReused(id=reservation.hold_id)
    return cut


def require_same_base(lease: Lease, reservation: Reservation, sequence: Sequence) -> None:
    """Raises IdReused if a reservation's pages are on another path than that of ``sequence``.

    That is the path of the base that its first insert named, or its own. The tokens of another
    base are compared, as far as it goes and they are before ``sequence``, if the reservation has a
    path too. A base of a recovered reservation ends where its first insert began.
    Also raises the errors of ``Lease.base_of`` for such a base.
    """
    named = sequence.base_pin_id, sequence.base_reservation_id
    if named == reservation.base:
        return
    if not reservation.inserted:
        raise IdReused(id=reservation.hold_id)
    if named in ((None, None), (None, reservation.hold_id)):
        return
    base = lease.base_of(reservation.namespace, sequence)
    assert base is not None  # it is named
    end = sequence.position * TOKEN_BYTES
    if not reservation.tokens().startswith(base.tokens()[:end]):
        raise IdReused(id=reservation.hold_id)


def place_of(
    lease: Lease, reservation: Reservation, sequence: Sequence, cut: int
) -> tuple[Hold | None, Position]:
    """Returns the base of a sequence's pages from byte ``cut`` on, and the place before them.

    Raises IdReused, InvalidField, ParentNotCovered or ParentDetached unless they may follow the
    inserted ones, besides the errors of ``Lease.base_of``.
    """
    if reservation.tail_token_count:
        raise IdReused(id=reservation.hold_id)
    require_sequence(sequence.tokens[cut:], reservation.namespace.width)
    base = base_of(lease, reservation, sequence)
    return base, parent_of(reservation, base)


def require_covered(
    lease: Lease, reservation: Reservation, sequence: Sequence, length: int
) -> None:
    """Raises ParentNotCovered unless the whole pages of ``length`` tokens are held.

    Also raises the errors of ``Lease.base_of``.
    """
    base = base_of(lease, reservation, sequence)
    page_tokens = reservation.namespace.layout.page_tokens
    covered_position(reservation.namespace, base, length // page_tokens)


def base_of(lease: Lease, reservation: Reservation, sequence: Sequence) -> Hold | None:
    """Returns the hold of the path that an insert continues: after the first its reservation.

    Raises the errors of ``Lease.base_of``.
    """
    return reservation if reservation.inserted else lease.base_of(reservation.namespace, sequence)


def parent_of(reservation: Reservation, base: Hold | None) -> Position:
    """Returns the place after which the next page of a reservation is published.

    ``base`` holds the path there. Raises ParentNotCovered or ParentDetached.
    """
    parent = covered_position(reservation.namespace, base, reservation.whole_end)
    if has_left(parent.node):
        raise ParentDetached(page_position=reservation.whole_end)
    return parent


def publish_next(
    reservation: Reservation,
    base: Hold | None,
    parent: Position,
    tokens: bytes,
    checksums: Items[int] = (),
    hint: Hint = NO_HINT,
) -> Published:
    """Inserts ``tokens`` at the reservation's inserted end: whole pages, then a partial one.

    ``base`` holds the path to ``parent``, which ends there. A page that is cached already stays,
    and so does a page that begins with the partial one. ``checksums`` has one entry for each page,
    or none; ``hint`` is that of all pages.
    """
    namespace = reservation.namespace
    index = namespace.index
    done = reservation.whole_end
    pages, rest = divmod(len(tokens), index.width)
    slots = reservation.reserved[reservation.inserted :]
    at = index.descend(parent, tokens, pages)
    duplicates = at.node.start + at.pages - done
    flags = [False] * duplicates + [True] * (pages - duplicates)
    superseded = returned = page_id = 0
    runs: tuple[Run, ...] = ()
    tail = tokens[pages * index.width :]
    # Nothing continues a page that is not there yet.
    fuller = index.beginning_with(at, tail) if rest and duplicates == pages else None
    if namespace.journal is not None:
        count = pages - duplicates + (rest > 0 and fuller is None)
        page_id, runs = write_insert(
            *(reservation, at if fuller is None else fuller),
            *(slots[duplicates : duplicates + count], tokens[duplicates * index.width :]),
            *(checksums[duplicates : duplicates + count], duplicates + (fuller is not None)),
        )
    if duplicates < pages:
        whole = tokens[duplicates * index.width : pages * index.width]
        own = slots[duplicates:pages]
        at, superseded, returned = publish(namespace, at, whole, own, hint, page_id=page_id)
    if rest:
        if fuller is None:
            own = slots[pages : pages + 1]
            page_id += page_id and pages - duplicates
            at, more, back = publish(namespace, at, tail, own, hint, page_id=page_id)
            superseded += more
            returned += back
        else:
            at = fuller
        flags.append(fuller is None)
    tiers = None
    if namespace.lower_arena is not None:
        held = None if base is None else base.tiers
        tiers = joined(held, done, nearest(at), at.depth)
    if checksums:
        marked = zip(slots, flags, checksums, strict=False)
        namespace.arena.keep_checksums(
            (slot, checksum) for slot, published, checksum in marked if published
        )
    anchors = [*reservation.anchors, *(each.other for each in reservation.anchors)]
    left = [anchor.node for anchor in anchors if anchor is not None]
    reservation.record(flags, at, rest // TOKEN_BYTES, tiers)
    for node in left:
        index.compact(node)
    return Published(at, sum(flags), len(flags) - sum(flags), superseded, returned, runs)


def write_rest(
    journal: Journal, lease: Lease, reservation: Reservation, moves: SlotMoves | None
) -> None:
    """Writes to the journal what the record of an insert does not say of its reservation.

    Slots that moved are from now on those of the reservation that was written last.
    """
    if moves is not None or reservation.tiers is not None:
        write_reservation(journal, lease, reservation)


def write_insert(
    reservation: Reservation,
    at: Position,
    slots: Slots,
    tokens: bytes,
    checksums: Items[int],
    duplicate_count: int,
) -> tuple[int, tuple[Run, ...]]:
    """Writes to the journal that pages are published after ``at``.

    Without ``slots`` all pages are cached, the last one at ``at``. Returns the first page's id,
    and the slots as runs.
    """
    namespace = reservation.namespace
    journal = namespace.journal
    assert journal is not None  # the caller knows
    partial = begun(at, tokens[: namespace.width]) if slots else None
    runs = runs_of(slots, namespace.extents)
    # Slots that moved are the other reservation's until this one is written.
    is_pending = len(reservation.reserved) > reservation.written_count
    head = PAGES_FORM.pack(
        INSERTED,
        FIRST,
        HAS_CHECKSUMS if checksums else 0,
        len(slots),
        namespace.number,
        reservation.lease_number,
        journal.next_id,
        at.page_id,
        NO_PAGE if partial is None else Position(partial, 1).page_id,
        reservation.hold_id,
        reservation.inserted,
        duplicate_count,
        len(tokens) % namespace.width // TOKEN_BYTES,
        journal.next_number if is_pending else 0,
    )
    sums = array("Q", checksums) if checksums else b""
    parts = (head, slots, generations_in(runs), sums, tokens if slots else b"")
    return journal.insert(len(slots), *parts), runs


def announce(lease: Lease, sequence: Sequence, pin_id: int, reservation: Reservation) -> None:
    """Announces to matches what a reservation is to compute of a sequence, after its match."""
    namespace, pin = reservation.namespace, lease.pins.get(pin_id)
    at = Position(namespace.index.root, 0) if pin is None else pin.position_at(pin.held_end)
    tokens = whole_tokens(namespace, at, sequence)
    if tokens is not None:
        start = reservation.start_page
        end = start + len(reservation.reserved)
        reservation.prefill = namespace.prefills.announce(
            tokens, start, end, pin_id, reservation.taken_at
        )


def note_advance(reservation: Reservation, sequence: Sequence, tokens: bytes, now: float) -> None:
    """Records how far a prefill has got, after ``tokens`` of ``sequence`` were inserted.

    The prefill ends once all that was announced is inserted, or something else is.
    """
    prefill = reservation.prefill
    if prefill is None:
        return
    end = reservation.whole_end
    first = 0 < reservation.start_page == prefill.at
    elsewhere = first and sequence.base_pin_id != prefill.pin_id
    as_announced = prefill.tokens.startswith(tokens, prefill.at * reservation.namespace.width)
    if elsewhere or not as_announced or end >= prefill.end or reservation.tail_token_count:
        reservation.drop_prefill()
    else:
        reservation.namespace.prefills.advance(prefill, end, now)


def store_next_token(
    lease: Lease, reservation: Reservation, sequence: Sequence, token: int
) -> None:
    """Stores the token that follows ``sequence``, all of which is inserted.

    Stores nothing if a page that the token was computed on left the index since. That page
    may have been found corrupt, and another page in its place proves nothing about the token.
    Raises ParentNotCovered, besides the errors of ``Lease.base_of``, unless a token of
    ``sequence`` was inserted.
    """
    namespace = reservation.namespace
    length = sequence.position * TOKEN_BYTES + len(sequence.tokens)
    depth, rest = divmod(length, namespace.width)
    base = base_of(lease, reservation, sequence)
    at = covered_position(namespace, base, depth)
    last = reservation.position_at(depth + 1) if rest else at
    if not length or has_left(last.node):
        return
    tail = sequence.tokens[len(sequence.tokens) - rest :]
    journal = namespace.journal
    if journal is not None and at.find_next_token(tail) is None:
        journal.end(namespace.number, at.page_id, last.page_id, tail, token)
    at.store_next_token(tail, token)
