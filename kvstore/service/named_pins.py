"""Named pins under the store's mutex: the core's verbs, with the time of the moment."""

from threading import Lock

import structlog

from kvstore.core import Identity, NamedPinRequest, PrefixCache
from kvstore.core.stats import NamedPinStats, named_pin_stats
from kvstore.service.clock import Clock

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class NamedPinKeeper:
    """Makes, ends and lists named pins, for any thread. Raises what the core's methods raise.

    ``mutex`` is the store's, under which ``cache`` may be used.
    """

    def __init__(self, cache: PrefixCache, mutex: Lock, clock: Clock) -> None:
        self._cache = cache
        self._mutex = mutex
        self._clock = clock

    def pin(self, identity: Identity, namespace_id: bytes, request: NamedPinRequest) -> int:
        """Pins what is cached of a prefix's whole pages; returns how many tokens that is."""
        with self._mutex:
            return self._cache.pin_prefix(identity, namespace_id, request, self._clock())

    def unpin(self, identity: Identity, namespace_id: bytes, name: str) -> None:
        """Ends a named pin; one that is not there succeeds."""
        with self._mutex:
            self._cache.unpin_prefix(identity, namespace_id, name)

    def visible(self, identity: Identity, namespace_id: bytes | None) -> list[NamedPinStats]:
        """Returns the named pins of a namespace, None for all, in the order of their making."""
        with self._mutex:
            now = self._clock()
            pins = self._cache.visible_named_pins(identity, namespace_id)
            return [named_pin_stats(each, now) for each in pins]

    def expire(self) -> None:
        """Ends the named pins past their time to live, with a line in the log for each."""
        with self._mutex:
            ended = self._cache.expire_named_pins(self._clock())
        for pin in ended:
            namespace_id = pin.namespace.namespace_id.hex()
            log.info("named_pin_expired", name=pin.name, namespace_id=namespace_id)
