"""One engine's store: namespaces by salt, and matches that wait for a namespace to open."""

from collections.abc import Sequence
from typing import Final

from kvstore_client import GroupWindow, Match, Namespace, StoreBudget
from kvstore_client.engines.store_access import StoreAccess
from kvstore_client.errors import StoreError, StoreUnavailable
from kvstore_client.values.packed_tokens import ONE_MORE, TOKEN_BYTES

# Salts are users' own, and may be many.
MOST_SLOW: Final = 1_024


class EngineStore:
    """The store of one engine's rank. Any thread may use it.

    ``windows`` are the KV cache groups that the engine's model has besides the path.
    """

    def __init__(self, access: StoreAccess, windows: Sequence[GroupWindow] = ()) -> None:
        self._access = access
        self._windows = windows
        # Salts whose namespaces did not open in time: nobody waits for them again.
        self._slow: set[bytes] = set()

    @property
    def usable(self) -> bool:
        """Says whether the store answers requests, as far as the client knows."""
        return self._access.usable

    @property
    def tried(self) -> bool:
        """Says whether the client has tried to reach the store since the start."""
        return self._access.tried

    def namespace(self, salt: bytes) -> Namespace:
        """Returns the namespace of a salt. It may not be open yet."""
        return self._access.namespace(salt)

    def start_page(self, device_pages: int) -> int:
        """Returns the page from which on the store has to have pages of windows."""
        return device_pages if self._windows else 0

    def match(self, salt: bytes, tokens: bytes, budget: StoreBudget, start_page: int = 0) -> Match:
        """Pins the longest cached prefix of packed tokens, less than all of them.

        It ends where each window is whole. The engine itself has the pages of windows before
        ``start_page``. Waits once for a new salt's namespace to open, as long as ``budget``
        allows. A failure of the store is a miss with ``Match.failure``. One thread calls it.
        """
        namespace = self._access.namespace(salt)
        failure = namespace.failure
        if isinstance(failure, StoreUnavailable) and self._access.usable:
            if salt in self._slow:
                return Match(failure=failure)
            try:
                with budget.spend(budget.seconds) as deadline:
                    opened = namespace.wait_open(deadline.left())
            except StoreError as error:
                return Match(failure=error.with_traceback(None))
            if not opened:
                self._note_slow(salt)
        else:
            self._slow.discard(salt)
        return namespace.match(
            tokens, groups=self._windows, group_start_page=start_page, budget=budget
        )

    def cached_pages(self, salt: bytes, tokens: bytes, page_bytes: int) -> int | None:
        """Returns how many pages of packed tokens the store has; None if it did not answer.

        ``page_bytes`` is the number of bytes of a page's tokens.
        """
        found = self._access.namespace(salt).cached_token_count(tokens + ONE_MORE)
        return None if found is None else found * TOKEN_BYTES // page_bytes

    def _note_slow(self, salt: bytes) -> None:
        if len(self._slow) >= MOST_SLOW:
            self._slow.clear()
        self._slow.add(salt)
