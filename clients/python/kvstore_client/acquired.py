"""A match and slots for the rest, from one round trip."""

from kvstore_client.errors import StoreError
from kvstore_client.held import Held
from kvstore_client.hold import Hold
from kvstore_client.in_flight import InFlight
from kvstore_client.match import Match
from kvstore_client.reservation import Reservation


class Acquired(Held):
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

    @property
    def in_flight(self) -> InFlight | None:
        """What somebody else is computing of the sequence beyond the match.

        There, where it was asked to yield, nothing is held: it did.
        """
        return self.match.in_flight

    @property
    def holds(self) -> list[Hold]:
        """What the match holds, and the reservation."""
        reserved = [] if self.reservation is None else [self.reservation.hold]
        return [*self.match.holds, *reserved]
