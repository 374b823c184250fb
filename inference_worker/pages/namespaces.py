"""The namespaces of an engine: one for each salt that its requests name."""

from collections import OrderedDict
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from hashlib import sha256
from typing import Final

from kvstore_client import Namespace
from kvstore_client.errors import StoreUnavailable

# Namespaces of salts that are open at a time.
MAX_SALTS: Final = 64
# A request whose salt is new waits so long for its namespace, in seconds, and goes without then.
OPENING_SECONDS: Final = 0.5
# Of a store's namespaces: its ``max_salt_bytes`` unless set otherwise.
MAX_SALT_BYTES: Final = 256


def salt_bytes(salt: str) -> bytes:
    """Writes a salt as a store takes it: UTF-8, and of what is longer than that a digest."""
    written = salt.encode()
    return written if len(written) <= MAX_SALT_BYTES else sha256(written).digest()


class SaltedNamespaces:
    """Opens a namespace for each salt, in the background, and lets go of those used longest ago.

    One engine thread uses it.
    """

    def __init__(self, unsalted: Namespace) -> None:
        """Starts with the one of no salt, which stays."""
        self._unsalted = unsalted
        self._salted: OrderedDict[str, Namespace] = OrderedDict()

    def find(self, salt: str, used: Callable[[], AbstractSet[str]]) -> Namespace:
        """Gives a salt's namespace, perhaps not open yet; none of ``used`` salts is let go."""
        if not salt:
            return self._unsalted
        if salt not in self._salted:
            self._make_room(used())
            self._salted[salt] = self._unsalted.salted(salt_bytes(salt))
        self._salted.move_to_end(salt)
        return self._salted[salt]

    def is_opening(self, salt: str) -> bool:
        """Tell whether a salt's namespace is about to be open: the store is there, and it is not.

        One that the store refused is not waited for.
        """
        namespace = self._salted.get(salt)
        if namespace is None or self._unsalted.failure is not None:
            return False
        return isinstance(namespace.failure, StoreUnavailable)

    def state_speed(self, tokens_per_second: float) -> None:
        """State the engine's speed in all of them."""
        for namespace in (self._unsalted, *self._salted.values()):
            namespace.prefill_tokens_per_second = tokens_per_second

    def _make_room(self, used: AbstractSet[str]) -> None:
        for salt in [each for each in self._salted if each not in used]:
            if len(self._salted) < MAX_SALTS:
                return
            self._salted.pop(salt).forget()
