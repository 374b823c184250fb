"""The oracle: the contents of pages, and the workers that may touch them."""

from collections.abc import Callable
from functools import lru_cache
from hashlib import blake2b
from struct import Struct
from typing import NamedTuple

from kvstore_client import PageRef
from simulation.kernel import Kernel, Process, Violation
from simulation.node import PAGE_BYTES, PAGE_TOKENS

# A token's place on a page: what stands for its KV, its writer, and which of the writer's pages.
CELL = Struct("<8sII")
KEY_BYTES = 8
HALF = PAGE_BYTES // 2

Tokens = tuple[int, ...]


class Place(NamedTuple):
    """A slot of one store's life."""

    epoch: int
    page: PageRef


@lru_cache(maxsize=1 << 16)
def key_of(tenant: str, path: Tokens) -> bytes:
    """Returns what the KV of a path's last token is: a function of tenant and path alone."""
    return blake2b(repr((tenant, path)).encode(), digest_size=KEY_BYTES).digest()


@lru_cache(maxsize=1 << 16)
def keys_of(tenant: str, path: Tokens, page: int, count: int) -> tuple[bytes, ...]:
    """Returns what the first tokens of a page of a path are."""
    start = page * PAGE_TOKENS
    return tuple(key_of(tenant, path[: start + k + 1]) for k in range(count))


@lru_cache(maxsize=1 << 16)
def next_token_of(tenant: str, path: Tokens) -> int:
    """Returns the token that a greedy engine finds after a path."""
    return 1 + key_of(tenant, (*path, 0))[0] % 2


def page_bytes(keys: tuple[bytes, ...], writer: int, version: int) -> bytes:
    """Returns a page with these tokens, and nothing after them."""
    return b"".join(CELL.pack(key, writer, version) for key in keys).ljust(PAGE_BYTES, b"\0")


class User:
    """A hold as the oracle knows it: whose it is, what it may write, what it reads."""

    def __init__(self, process: Process, what: str) -> None:
        self.process = process
        self.what = what
        self.writes: set[Place] = set()
        self.reads: set[Place] = set()


class Oracle:
    """Knows from the store's answers which worker may touch which slot. Counts its checks."""

    def __init__(self, kernel: Kernel) -> None:
        self.pages_checked = 0
        # Acquires that took nothing, for another was computing.
        self.yields = 0
        self.pages_written = 0
        self._kernel = kernel
        self._writers: dict[Place, User] = {}
        self._readers: dict[Place, list[User]] = {}

    def granted(self, user: User, places: list[Place]) -> None:
        """Notes slots to write; nobody who lives may have them."""
        for place in places:
            self._require_alone(user, place, "was reserved")
            self._writers[place] = user
            user.writes.add(place)

    def offered(self, user: User, places: list[Place]) -> None:
        """Notes that pages are written, and may be seen by all from now on."""
        for place in places:
            if self._writers.get(place) is user:
                del self._writers[place]
            user.writes.discard(place)
            # Immutable, whether the insert comes through or not: it stays its user's.
            self.reading(user, [place])

    def reading(self, user: User, places: list[Place]) -> None:
        """Notes pages that have to stay as they are; nobody who lives may write them."""
        for place in places:
            writer = self._writers.get(place)
            if writer is not None and writer is not user and writer.process.alive:
                raise Violation(f"{place} of {writer.what} was matched while it is written")
            self._readers.setdefault(place, []).append(user)
            user.reads.add(place)

    def written(self, user: User, place: Place) -> None:
        """Notes a write by a device; nobody else may have the slot."""
        self._require_alone(user, place, "was written")

    def ended(self, user: User) -> None:
        """Notes that a hold is given back, or died with its process."""
        for place in user.writes:
            if self._writers.get(place) is user:
                del self._writers[place]
        for place in user.reads:
            self._readers[place] = [each for each in self._readers[place] if each is not user]
        user.writes.clear()
        user.reads.clear()

    def _require_alone(self, user: User, place: Place, what: str) -> None:
        writer = self._writers.get(place)
        if writer is not None and writer is not user and writer.process.alive:
            raise Violation(f"{place} of {writer.what} {what} by {user.what}")
        for reader in self._readers.get(place, ()):
            if reader is not user and reader.process.alive:
                raise Violation(f"{place}, held by {reader.what}, {what} by {user.what}")


class Look:
    """One page under a hold: what it has to be, and what it was when first seen."""

    def __init__(
        self, oracle: Oracle, view: Callable[[], memoryview], keys: tuple[bytes, ...]
    ) -> None:
        self._oracle, self._view, self._keys = oracle, view, keys
        self._first: bytes | None = None

    def check(self, who: str) -> None:
        """Sees that the page is right, whole, and as it was."""
        content = bytes(self._view())
        self._oracle.pages_checked += 1
        for index, key in enumerate(self._keys):
            if content[index * CELL.size : index * CELL.size + KEY_BYTES] != key:
                raise Violation(f"{who} sees a wrong or torn page")
        if self._first is None:
            self._first = content
        elif content != self._first:
            raise Violation(f"{who} holds a page that changed")
