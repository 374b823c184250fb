"""One engine's store: namespaces by salt, and matches that wait for a namespace to open."""

from kvstore_client import Match, Namespace, StoreBudget
from kvstore_client.engines.store_access import StoreAccess
from kvstore_client.errors import StoreError, StoreUnavailable


class EngineStore:
    """The store of one engine's rank. Any thread may use it."""

    def __init__(self, access: StoreAccess) -> None:
        self._access = access

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

    def match(self, salt: bytes, tokens: bytes, budget: StoreBudget) -> Match:
        """Pins the longest cached prefix of packed tokens, less than all of them.

        Waits for a new salt's namespace to open, as long as ``budget`` allows. A failure of the
        store is a miss with ``Match.failure``.
        """
        namespace = self._access.namespace(salt)
        failure = namespace.failure
        if isinstance(failure, StoreUnavailable) and self._access.usable:
            try:
                with budget.spend(budget.seconds) as deadline:
                    namespace.wait_open(deadline.left())
            except StoreError as error:
                return Match(failure=error.with_traceback(None))
        return namespace.match(tokens, budget=budget)
