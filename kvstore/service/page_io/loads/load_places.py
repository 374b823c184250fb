"""Places for calls that wait, each of which occupies a thread, and bytes for prefetches."""

from collections import Counter
from threading import Lock
from typing import Self


class Places:
    """A number of places, of which a tenant gets at most half beside other tenants. Thread-safe."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._mutex = Lock()
        self._taken: Counter[str] = Counter()

    def take(self, tenant: str, *, is_alone: bool) -> bool:
        """Takes a place for a call of a tenant; returns False if there is none for it.

        A tenant that ``is_alone`` in the store may take all places.
        """
        most = self._count if is_alone else self._count // 2
        with self._mutex:
            fits = self._taken.total() < self._count and self._taken[tenant] < most
            if fits:
                self._taken[tenant] += 1
        return fits

    def give_back(self, tenant: str) -> None:
        """Gives back a place that a call of the tenant took."""
        with self._mutex:
            self._taken[tenant] -= 1
            if not self._taken[tenant]:
                del self._taken[tenant]


class HeldPlaces:
    """The places that one call has. For one thread."""

    def __init__(self, tenant: str, *, is_alone: bool) -> None:
        """Makes it for a call of a tenant, which may be alone in the store."""
        self._tenant = tenant
        self._is_alone = is_alone
        self._held: set[Places] = set()

    def take(self, places: Places) -> bool:
        """Takes a place, unless the call has one there; returns False if there is none for it."""
        if places not in self._held:
            if not places.take(self._tenant, is_alone=self._is_alone):
                return False
            self._held.add(places)
        return True

    def give_back(self, places: Places) -> None:
        """Gives one of them back, if the call has it."""
        if places in self._held:
            self._held.remove(places)
            places.give_back(self._tenant)

    def __enter__(self) -> Self:
        """Returns itself."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Gives back all that are left."""
        for each in list(self._held):
            self.give_back(each)


class ByteBudget:
    """Bytes that holders may use at a time, ``most`` of them each. Thread-safe."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._mutex = Lock()
        self._used: Counter[tuple[str, bytes]] = Counter()

    def take(self, holder: tuple[str, bytes], count: int, size: int) -> int:
        """Takes room for ``count`` pieces of ``size`` bytes, or for as many as fit.

        Returns for how many.
        """
        with self._mutex:
            fit = max(min(count, (self._most - self._used[holder]) // size), 0)
            self._used[holder] += fit * size
        return fit

    def give_back(self, holder: tuple[str, bytes], size: int) -> None:
        """Gives back so many bytes."""
        with self._mutex:
            self._used[holder] -= size
            if not self._used[holder]:
                del self._used[holder]
