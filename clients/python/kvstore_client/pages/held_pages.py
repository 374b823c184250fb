"""Pins and reservations of this process, and how it gives them back."""

import logging
import os
import sys
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Self

from kvstore_client.errors import PageRecycled
from kvstore_client.lifecycle.session import Session
from kvstore_client.memory.page_generations import PageGenerations
from kvstore_client.values.page_runs import PageRef, Pages

NO_PAGES = Pages()

_logger = logging.getLogger(__name__)


class Hold:
    """Pins and reservations of one session that are given back together.

    Create it within ``Session.request``. The session does not drain until its holds
    are given back. One thread at a time uses it.
    """

    def __init__(
        self,
        session: Session,
        *,
        pin_ids: Sequence[int] = (),
        reservation_ids: Sequence[int] = (),
        pages: Pages = NO_PAGES,
    ) -> None:
        """``pages`` are those of the store's answer."""
        self.session = session
        self.pin_ids = pin_ids
        self.reservation_ids = reservation_ids
        self.generations = PageGenerations(pages)
        # True for reservations that never had a slot: no other call waits for their end.
        self.slotless = False
        self.open = True
        self._pid = os.getpid()
        session.hold()

    def recycled(self) -> list[PageRef]:
        """Returns the pages whose slots the store reused, by a bug.

        Returns none once the hold is given back.
        """
        return self.reused_pages() if self.open else []

    def reused_pages(self) -> list[PageRef]:
        """Returns the pages whose slots the store reused. Compares them even if the hold ended."""
        return self.generations.recycled(self.session.extents.get)

    def __del__(self) -> None:
        # The pages may still be used by references that the caller kept: only it knows.
        if self.open and self._pid == os.getpid() and not sys.is_finalizing():
            ids = [*self.pin_ids, *self.reservation_ids]
            warnings.warn(f"{ids} were never given back", ResourceWarning, stacklevel=2)


def end_holds(*holds: Hold) -> None:
    """Waits for the device once, then gives back the holds of one session. Can be repeated.

    If the wait fails, nothing is given back, now or later: the pages may be
    written for as long as the process lives. Raises the errors of the wait, and
    :class:`~kvstore_client.errors.ForkedClient`.
    """
    still_open = [hold for hold in holds if hold.open]
    if not still_open:
        return
    session = still_open[0].session
    session.check_process()
    session.wait_for_device()
    for hold in still_open:
        hold.open = False
    session.give_back(
        pin_ids=[each for hold in still_open for each in hold.pin_ids],
        reservation_ids=[
            each for hold in still_open if not hold.slotless for each in hold.reservation_ids
        ],
        slotless_ids=[
            each for hold in still_open if hold.slotless for each in hold.reservation_ids
        ],
    )
    for _ in still_open:
        session.leave()


def require_current(*holds: Hold, wait: bool = True) -> None:
    """Waits for the device once, then compares the generations of all pages that are held.

    With ``wait=False`` the caller must have waited since its last device work on the pages. Raises
    :class:`~kvstore_client.errors.PageRecycled`, the errors of the wait, and
    :class:`~kvstore_client.errors.ForkedClient`.
    """
    still_open = [hold for hold in holds if hold.open]
    if not still_open:
        return
    session = still_open[0].session
    session.check_process()
    if wait:
        session.wait_for_device()
    require_not_reused(still_open)


def require_not_reused(holds: Iterable[Hold]) -> None:
    """Compares the generations of all pages, also of holds that ended. Waits for no device.

    Raises :class:`~kvstore_client.errors.PageRecycled` if the slot of a page was reused.
    """
    recycled = [page for hold in holds for page in hold.reused_pages()]
    if recycled:
        _logger.error("pages_recycled", extra={"page_count": len(recycled)})
        raise PageRecycled(recycled)


class HeldPages(ABC):
    """Pages that stay unchanged until :meth:`release`, or until the end of a ``with`` block.

    One thread at a time uses it.
    """

    @property
    @abstractmethod
    def holds(self) -> list[Hold]:
        """The open holds; may be empty."""

    def release(self) -> None:
        """Waits for the device once, then gives everything back. Can be repeated.

        Raises the errors of ``ClientConfig.wait_for_device``, and then holds the
        pages for as long as the process lives.
        """
        end_holds(*self.holds)

    @property
    def current(self) -> bool:
        """False if the store reused the slot of a held page, which is a bug: a pin forbids it.

        Reads memory only, some nanoseconds a page or less, and waits for no device.
        """
        return not any(hold.recycled() for hold in self.holds)

    @property
    def session_ended(self) -> bool:
        """True once the session that gave the pages ended. They stay as they are until released.

        The client attaches to a store again only after all pages of the old session are released.
        """
        return any(hold.open and hold.session.ended is not None for hold in self.holds)

    def require_current(self, *, wait: bool = True) -> None:
        """Waits for the device once, then raises ``PageRecycled`` unless :attr:`current`.

        Call it after you copied pages or read them in place. If it returns, your results are
        valid; if it raises, drop them. Also raises the errors of
        ``ClientConfig.wait_for_device``.

        An engine that waits for its device once for several sequences passes ``wait=False`` after
        that wait.
        """
        require_current(*self.holds, wait=wait)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.release()
