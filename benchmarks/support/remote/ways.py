"""The ways to move pages to an engine and back without the tier: bytes alone, and its client."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from time import monotonic
from typing import ClassVar, Final, Protocol

from kvstore.remote.engine import ReadResult
from kvstore.remote.valkey.address import EngineAddress
from kvstore.remote.valkey.valkey_engine import ValkeyEngine
from kvstore.storage.page_store import checksum_of
from support.remote.raw_client import RawConnection

LIMIT: Final = 60.0
LIFE_MS: Final = 3_600_000
# As many threads as the tier has.
READ_THREADS: Final = 2


class Way(Protocol):
    """One way. Pages of a round have names of their own, so each write makes new values."""

    def write(self, turn: str, pages: Sequence[memoryview]) -> None:
        """Writes pages, and returns once the engine has all of them."""
        ...

    def read(self, turn: str, pages: Sequence[memoryview]) -> None:
        """Reads the pages of a turn into their places."""
        ...

    def look(self, turn: str, count: int) -> int:
        """Returns how many of the first ``count`` pages of a turn the engine has."""
        ...

    def close(self) -> None:
        """Ends all connections."""
        ...


@lru_cache
def names_of(turn: str, count: int) -> list[bytes]:
    """Returns names as long as those of the tier. Making them is not a part of the ceiling."""
    return [f"kv1/{{{turn:>16}}}/{number:040x}".encode() for number in range(count)]


class RawWay:
    """Bytes alone, over some connections with a thread each."""

    connection_type: ClassVar[type[RawConnection]] = RawConnection

    def __init__(self, place: tuple[str, int] | str, connections: int) -> None:
        self._connections = [self.connection_type(place) for _ in range(connections)]
        self._threads = ThreadPoolExecutor(connections)

    def write(self, turn: str, pages: Sequence[memoryview]) -> None:
        """Writes each connection's share of the pages."""
        names = names_of(turn, len(pages))
        self._each(lambda line, part: line.put(names[part], pages[part]))

    def read(self, turn: str, pages: Sequence[memoryview]) -> None:
        """Reads each connection's share of the pages."""
        names = names_of(turn, len(pages))
        self._each(lambda line, part: line.get(names[part], pages[part]))

    def look(self, turn: str, count: int) -> int:
        """Counts all names by one command."""
        return self._connections[0].count(names_of(turn, count))

    def close(self) -> None:
        """Ends the connections."""
        self._threads.shutdown()
        for each in self._connections:
            each.close()

    def _each(self, call: Callable[[RawConnection, slice], None]) -> None:
        count = len(self._connections)
        parts = [slice(number, None, count) for number in range(count)]
        list(self._threads.map(call, self._connections, parts))


class EngineWay:
    """The engine's client as the tier calls it, with checksums and deadlines, without seals."""

    def __init__(self, address: EngineAddress) -> None:
        self._engine = ValkeyEngine(address, connections=READ_THREADS)
        self._engine.ping(monotonic() + LIMIT)
        self._threads = ThreadPoolExecutor(READ_THREADS)
        self._checksums: dict[bytes, int] = {}

    def write(self, turn: str, pages: Sequence[memoryview]) -> None:
        """Writes on one thread, as the tier does."""
        names = names_of(turn, len(pages))
        self._checksums = {
            name: checksum_of([page]) for name, page in zip(names, pages, strict=True)
        }
        deadline = monotonic() + LIMIT
        lives = [LIFE_MS] * len(names)
        for error in self._engine.put_many(names, pages, lives, deadline):
            assert error is None, error

    def read(self, turn: str, pages: Sequence[memoryview]) -> None:
        """Reads on as many threads as the tier, and compares each page with its checksum."""
        names = names_of(turn, len(pages))

        def part(number: int) -> None:
            places = slice(number, None, READ_THREADS)
            found = self._engine.get_many(names[places], pages[places], monotonic() + LIMIT)
            for name, page, result in zip(names[places], pages[places], found, strict=True):
                assert result is ReadResult.READ
                assert checksum_of([page]) == self._checksums[name]

        list(self._threads.map(part, range(READ_THREADS)))

    def look(self, turn: str, count: int) -> int:
        """Asks for all names."""
        return sum(self._engine.exists_many(names_of(turn, count), monotonic() + LIMIT))

    def close(self) -> None:
        """Ends the connections."""
        self._threads.shutdown()
        self._engine.close()
