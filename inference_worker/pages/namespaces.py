"""The namespaces of an engine: one for each salt of its requests."""

from collections import OrderedDict
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from hashlib import sha256
from typing import Final

from kvstore_client import Namespace
from kvstore_client.errors import StoreUnavailable

# The most namespaces of salts that are open at a time.
MAX_SALTS: Final = 64
# Seconds that a request with a new salt waits for its namespace before it runs without one.
OPENING_SECONDS: Final = 0.5
# The default of the store's ``max_salt_bytes``.
MAX_SALT_BYTES: Final = 256


def salt_bytes(salt: str) -> bytes:
    """Returns a salt as UTF-8, or its digest if that is longer than ``MAX_SALT_BYTES``."""
    written = salt.encode()
    return written if len(written) <= MAX_SALT_BYTES else sha256(written).digest()


class SaltedNamespaces:
    """Opens a namespace for each salt, in the background, and forgets the least recently used ones.

    One engine thread uses it.
    """

    def __init__(self, unsalted: Namespace) -> None:
        """Starts with the namespace without a salt, which always stays."""
        self._unsalted = unsalted
        self._salted: OrderedDict[str, Namespace] = OrderedDict()

    def find(self, salt: str, used: Callable[[], AbstractSet[str]]) -> Namespace:
        """Returns a salt's namespace, which may not be open yet; never forgets one of ``used``."""
        if not salt:
            return self._unsalted
        if salt not in self._salted:
            self._make_room(used())
            self._salted[salt] = self._unsalted.salted(salt_bytes(salt))
        self._salted.move_to_end(salt)
        return self._salted[salt]

    def is_opening(self, salt: str) -> bool:
        """Returns whether the store is attached and a salt's namespace is about to open.

        Returns False for a namespace that the store refused.
        """
        namespace = self._salted.get(salt)
        if namespace is None or self._unsalted.failure is not None:
            return False
        return isinstance(namespace.failure, StoreUnavailable)

    def state_speed(self, tokens_per_second: float) -> None:
        """Tells all namespaces the engine's prefill speed, for the store's decisions."""
        for namespace in (self._unsalted, *self._salted.values()):
            namespace.prefill_tokens_per_second = tokens_per_second

    def _make_room(self, used: AbstractSet[str]) -> None:
        for salt in [each for each in self._salted if each not in used]:
            if len(self._salted) < MAX_SALTS:
                return
            self._salted.pop(salt).forget()
