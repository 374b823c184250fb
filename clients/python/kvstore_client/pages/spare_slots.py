"""Slots that are reserved before it is known which pages they will hold."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Self

from kvstore.v1 import prefix_cache_pb2, types_pb2
from kvstore_client.calls.deadlines import StoreBudget
from kvstore_client.lifecycle.session import OpenedNamespace, Session
from kvstore_client.pages.held_pages import Hold, end_holds
from kvstore_client.values.page_runs import PageRef, Pages


class _Place(NamedTuple):
    """A slot, with its generation if the store named one."""

    extent_id: int
    slot: int
    generations: tuple[int, ...]


class SpareSlots:
    """Slots of one namespace for the pages of any sequence and group, each at an *offset*.

    Take offsets, write the pages, and name the offsets in :meth:`Reservation.insert`. The
    insert moves the slots to its reservation. :meth:`refill` puts fresh slots in their places,
    with one call for all.

    As a context manager it aborts at the end, after it waited for the device. One thread at a
    time uses it. It ends with its session: make another one then.
    """

    def __init__(self, hold: Hold, namespace: OpenedNamespace, pages: Pages) -> None:
        """``pages`` are all the slots, which ``hold`` reserves."""
        self.hold = hold
        self._namespace = namespace
        self._places = _places(pages)
        self._free = list(range(len(self._places) - 1, -1, -1))
        # By offset, the reservation whose insert named it.
        self._named: dict[int, Hold] = {}

    @property
    def session(self) -> Session:
        """The session that it was made in."""
        return self.hold.session

    @property
    def namespace_id(self) -> bytes:
        """The namespace of the pages."""
        return self._namespace.namespace_id

    @property
    def reservation_id(self) -> int:
        """The id of the reservation that has the slots."""
        return self.hold.reservation_ids[0]

    @property
    def page_count(self) -> int:
        """The number of offsets."""
        return len(self._places)

    @property
    def free_count(self) -> int:
        """The number of offsets that :meth:`take` can return."""
        return len(self._free)

    @property
    def named_count(self) -> int:
        """The number of offsets that inserts have named since the last refill."""
        return len(self._named)

    def take(self, count: int) -> list[int]:
        """Returns ``count`` offsets that nobody uses, or none if there are fewer.

        Makes no call. The caller may write their pages from now on. Raises ``ValueError`` once
        the slots were aborted.
        """
        self._require_open()
        if count > len(self._free):
            return []
        return [self._free.pop() for _ in range(count)]

    def put_back(self, offsets: Iterable[int]) -> None:
        """Returns offsets that were taken. Ignores those that an insert has named.

        Makes no call.
        """
        self._free.extend(each for each in offsets if each not in self._named)

    def page(self, offset: int) -> PageRef:
        """Returns the place of the page to write, valid until an insert names the offset."""
        return PageRef(*self._places[offset][:2])

    def refill(self, budget: StoreBudget | None = None) -> int:
        """Puts fresh slots in place of those that moved; returns how many offsets are free now.

        After an insert that failed, its slots come back with the first refill after the abort of
        its reservation. Without ``budget`` the call may take as long as any one call. Raises
        ``StoreError``, such as ``PoolExhausted``, and keeps the slots that are left. Raises
        ``ValueError`` once the slots were aborted.
        """
        self._require_open()
        session = self.hold.session
        session.check_process()
        ended = {offset for offset, hold in self._named.items() if not hold.open}
        request = prefix_cache_pb2.ReservationRequest(
            reservation_id=self.reservation_id, page_count=self.page_count
        )
        with session.request(budget) as asking:
            # An insert that is still on its way to the store finds its reservation aborted.
            session.settle(asking)
            [grant] = asking.ask(
                session.lease.reserve, self.namespace_id, [request], asking.remaining()
            )
            pages = session.require_mapped(Pages(grant.runs))
        before, self._places = self._places, _places(pages)
        fresh = [
            offset
            for offset in self._named
            if offset in ended or self._places[offset] != before[offset]
        ]
        for offset in fresh:
            del self._named[offset]
        self._free.extend(fresh)
        return len(self._free)

    def abort(self) -> None:
        """Waits for the device, then gives back all slots that are left. Can be repeated.

        Raises the errors of ``ClientConfig.wait_for_device``, and then holds the slots for as
        long as the process lives.
        """
        end_holds(self.hold)

    def runs(self, offsets: Sequence[int]) -> list[types_pb2.PageRun]:
        """Returns the slots at some offsets, with their generations, in this order.

        Raises ``ValueError`` if an insert has named one of them, or once they were aborted.
        """
        self._require_open()
        if not self._named.keys().isdisjoint(offsets):
            raise ValueError("an insert has named one of these offsets before")
        runs: list[types_pb2.PageRun] = []
        for offset in offsets:
            extent_id, slot, generations = self._places[offset]
            if not runs or runs[-1].extent_id != extent_id:
                runs.append(types_pb2.PageRun(extent_id=extent_id))
            runs[-1].slot_indexes.append(slot)
            runs[-1].generations.extend(generations)
        return runs

    def name(self, offsets: Iterable[int], hold: Hold) -> None:
        """Records that an insert of the reservation of ``hold`` is about to name some offsets."""
        self._named.update(dict.fromkeys(offsets, hold))

    def _require_open(self) -> None:
        if not self.hold.open:
            raise ValueError(f"the spare slots of reservation {self.reservation_id} were aborted")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.abort()


def _places(pages: Pages) -> list[_Place]:
    return [
        _Place(run.extent_id, slot, run.generations[number : number + 1])
        for run in pages.dated_runs
        for number, slot in enumerate(run.slots)
    ]
