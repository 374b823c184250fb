"""Worlds of the core with named pins in them, by letters."""

from core.core_builders import NAMESPACE_ID, OWNER, CoreWorld, paged
from kvstore.core.values.limits import Quotas
from kvstore.core.values.requests import NamedPinRequest


def world_of(*sequences: str, slots: int = 8, max_named_pins: int = 1000) -> CoreWorld:
    """Returns a world in which sequences are cached and not held."""
    world = CoreWorld(slots=slots, quotas=Quotas(named_pins=max_named_pins))
    world.worker.publish(*sequences)
    return world


def pin(
    world: CoreWorld, name: str, letters: str, *, ttl: float | None = None, require: bool = False
) -> int:
    """Pins what is cached of ``letters`` under a name; returns the pages pinned."""
    request = NamedPinRequest(name, paged(letters), ttl, require)
    pinned, rest = divmod(
        world.cache.pin_prefix(OWNER, NAMESPACE_ID, request, world.now), world.page_tokens
    )
    assert rest == 0
    world.laws.check()
    return pinned


def names(world: CoreWorld) -> list[str]:
    """Returns the names of all pins, in the order of their making."""
    return [each.name for each in world.cache.visible_named_pins(OWNER, NAMESPACE_ID)]


def letters_held(world: CoreWorld, name: str) -> int:
    """Returns how many pages a named pin holds."""
    return world.cache.state.named_pins.of(world.namespace)[name].held_end
