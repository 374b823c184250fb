"""A match and slots for the rest, from one round trip."""

from types import TracebackType
from typing import Self

from kvstore_client.errors import StoreError
from kvstore_client.hold import end_holds
from kvstore_client.match import Match
from kvstore_client.reservation import Reservation


class Acquired:
    """What is cached of a sequence, and a reservation for the pages that are not.

    ``reservation`` is None where slots cannot be had; where all is cached it has
    no pages yet, and can grow. As a context manager both are given back at the
    end, after waiting for the device once. One thread at a time uses it.
    """

    def __init__(self, match: Match, reservation: Reservation | None = None) -> None:
        self.match = match
        self.reservation = reservation

    @property
    def failure(self) -> StoreError | None:
        """Why the store gave nothing, where it failed."""
        return self.match.failure

    def release(self) -> None:
        """Wait for the device, then give back both; nothing the second time.

        Raises what ``ClientConfig.wait_for_device`` raises, and then gives
        nothing back for as long as the process lives.
        """
        reserved = [] if self.reservation is None else [self.reservation.hold]
        end_holds(*self.match.holds, *reserved)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()
