"""Insert: publishes the pages of a reservation, and stores next tokens."""

from array import array
from collections.abc import Sequence as Items
from typing import NamedTuple

from kvstore.core.cache_state import CacheState
from kvstore.core.index.node import Position
from kvstore.core.journal.records import INSERTED, NO_PAGE, PagesRecord
from kvstore.core.leases.holds import Hold, Reservation, covered_position
from kvstore.core.leases.journaling import generations_in, row_of, write_reservation
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

# A named tuple's constructor costs a Python frame.
_new_tuple = tuple.__new__


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

    def insert(
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

        The last page may be partial; then nothing may follow it. ``next_token`` is stored at
        the end of ``sequence``. ``checksums`` has one entry for each page of ``sequence``,
        zero for none, or is empty. The store keeps those of pages that it publishes now.
        ``hint`` is what the caller expects of these pages. ``moves`` are slots of another
        reservation, for the last of these pages and for pages of KV cache groups. With them
        the reservation is made if it does not exist.
        """
        lease = self._state.member(caller)
        reservation = reservation_for(lease, reservation_id, sequence, moves, now)
        namespace = reservation.namespace
        length = self._state.length(sequence.tokens, sequence.position)
        plan = plan_moves(lease, reservation, moves, -(-length // namespace.layout.page_tokens))
        first, end = insert_range(reservation, sequence, length, len(plan.offsets))
        require_checksums(checksums, end - first)
        known = reservation.token_end(namespace.layout.page_tokens) - sequence.position
        cut = min(max(known, 0) * TOKEN_BYTES, len(sequence.tokens))
        if cut:
            require_same(reservation, sequence, cut)
        is_new = cut < len(sequence.tokens)
        if is_new:
            require_new(lease, reservation, sequence, cut)
        elif next_token is not None:
            require_covered(lease, reservation, sequence, length)
        if plan.pages:
            covered = length // namespace.layout.page_tokens if is_new else None
            base = base_of(lease, reservation, sequence)
            require_parents(namespace, base, covered, plan.pages)
        # From here on nothing is refused.
        if moves is not None and reservation_id not in lease.reservations:
            self._add(lease, reservation)
        move_slots(reservation, plan)
        expected = NO_HINT if hint is None else hint.at(now)
        runs: tuple[Run, ...] = ()
        if is_new:
            fresh = checksums[reservation.whole_end - first :]
            # Without a record of the reservation, slots that move are still the other's.
            pending = plan.source is not None
            runs = self._publish(
                lease, reservation, sequence, cut, fresh, expected, now, is_pending=pending
            )
        if plan.pages:
            self._publish_groups(lease, reservation, sequence, plan, expected, now)
        journal = self._state.journal
        if journal is not None and (moves is not None or reservation.tiers is not None):
            # An insert's own record does not say all of it. Slots that moved are the later one's.
            write_reservation(journal, lease, reservation)
        if next_token is not None:
            store_next_token(lease, reservation, sequence, next_token)
        flags = reservation.published[first - reservation.start_page : end - reservation.start_page]
        runs = runs or runs_of(reservation.slots()[first:end], namespace.extents)
        groups = () if moves is None else published_groups(reservation, moves.groups)
        return Inserted(runs, sum(flags), groups)

    def _add(self, lease: Lease, reservation: Reservation) -> None:
        """Gives a lease the reservation of an insert that brings its slots."""
        if self._state.journal is not None:
            self._state.journal.hold(row_of(lease, reservation))
        lease.add_reservation(reservation)

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
        inserted, duplicates, returned = self._groups.publish(lease, reservation, base, plan, hint)
        for counters in (self._state.counters, namespace.counters, lease.counters):
            counters.inserted_page_count += inserted
            counters.duplicate_page_count += duplicates
            counters.returned_page_count += returned

    def _publish(
        self,
        lease: Lease,
        reservation: Reservation,
        sequence: Sequence,
        cut: int,
        checksums: Items[int],
        hint: Hint,
        now: float,
        *,
        is_pending: bool,
    ) -> tuple[Run, ...]:
        """Publishes a sequence's pages from byte ``cut`` on, and tells the other tiers.

        Returns the slots of the sequence if they are known and all of it was published.
        ``is_pending`` means that some of the slots are another reservation's until its record.
        """
        state, namespace, tokens = self._state, reservation.namespace, sequence.tokens[cut:]
        namespace.arena.policy.now = state.events.now = now
        published = publish_next(
            lease, reservation, sequence, tokens, checksums, hint, is_pending=is_pending
        )
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
    reserved_end = reservation.reserved_end + moving
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


def require_checksums(checksums: Items[int], page_count: int) -> None:
    """Raises InvalidField unless there is a checksum for each page, or none at all."""
    if checksums and len(checksums) != page_count:
        why = f"{page_count} pages are inserted"
        value = f"{len(checksums)} checksums"
        raise InvalidField(field="page_checksums", value=value, why=why)


def require_same(reservation: Reservation, sequence: Sequence, cut: int) -> None:
    """Raises IdReused unless a sequence's first ``cut`` bytes are what was inserted."""
    start = sequence.position * TOKEN_BYTES
    if reservation.tokens()[start : start + cut] != sequence.tokens[:cut]:
        raise IdReused(id=reservation.hold_id)


def require_new(lease: Lease, reservation: Reservation, sequence: Sequence, cut: int) -> None:
    """Raises unless a sequence's pages from byte ``cut`` on may follow the inserted ones.

    Raises IdReused, InvalidField, ParentNotCovered or ParentDetached, besides the errors of
    ``Lease.base_of``.
    """
    if reservation.tail_token_count:
        raise IdReused(id=reservation.hold_id)
    require_sequence(sequence.tokens[cut:], reservation.namespace.width)
    parent_of(reservation, base_of(lease, reservation, sequence))


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
    if parent.node.detached:
        raise ParentDetached(page_position=reservation.whole_end)
    return parent


def publish_next(
    lease: Lease,
    reservation: Reservation,
    sequence: Sequence,
    tokens: bytes,
    checksums: Items[int] = (),
    hint: Hint = NO_HINT,
    *,
    is_pending: bool = False,
) -> Published:
    """Inserts ``tokens`` at the reservation's inserted end: whole pages, then a partial one.

    A page that is cached already stays, and so does a page that begins with the partial one.
    ``checksums`` has one entry for each page, or none; ``hint`` is that of all pages.
    ``is_pending`` is for the journal. Raises ParentNotCovered or ParentDetached, besides the
    errors of ``Lease.base_of``.
    """
    namespace = reservation.namespace
    index = namespace.index
    base = base_of(lease, reservation, sequence)
    done = reservation.whole_end
    parent = parent_of(reservation, base)
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
            *(lease, reservation, at if fuller is None else fuller),
            *(slots[duplicates : duplicates + count], tokens[duplicates * index.width :]),
            checksums[duplicates : duplicates + count],
            duplicate_count=duplicates + (fuller is not None),
            is_pending=is_pending,
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


def write_insert(
    lease: Lease,
    reservation: Reservation,
    at: Position,
    slots: Slots,
    tokens: bytes,
    checksums: Items[int],
    *,
    duplicate_count: int,
    is_pending: bool,
) -> tuple[int, tuple[Run, ...]]:
    """Writes to the journal that pages are published after ``at``.

    Without ``slots`` all pages are cached, the last one at ``at``. Returns the first page's id,
    and the slots as runs.
    """
    namespace = reservation.namespace
    journal = namespace.journal
    assert journal is not None  # the caller knows
    partial = begun(at, tokens[: namespace.width]) if slots else None
    superseded = NO_PAGE if partial is None else Position(partial, 1).page_id
    runs = runs_of(slots, namespace.extents)
    number = journal.next_number if is_pending else 0
    tail = len(tokens) % namespace.width // TOKEN_BYTES
    record = (
        *(INSERTED, FIRST, namespace.number, lease.number, journal.next_id, at.page_id),
        *(superseded, reservation.hold_id, reservation.inserted, duplicate_count, tail, number),
        *(slots, generations_in(runs), array("Q", checksums), tokens if slots else b""),
    )
    return journal.insert(_new_tuple(PagesRecord, record)), runs


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
    if not length or last.node.detached:
        return
    tail = sequence.tokens[len(sequence.tokens) - rest :]
    journal = namespace.journal
    if journal is not None and at.find_next_token(tail) is None:
        journal.end(namespace.number, at.page_id, last.page_id, tail, token)
    at.store_next_token(tail, token)
