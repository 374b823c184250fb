"""The slots of a cluster: a name's slot, and the nodes that have the slots."""

import re
from typing import Final

from kvstore.remote.secret.names import SLOT_COUNT, slot_of
from kvstore.remote.valkey.address import EngineAddress
from kvstore.remote.valkey.resp import Reply

# A range for each slot is the worst case, with three nodes of some parts in each.
MOST_PARTS: Final = 1 << 18
_MOVED: Final = re.compile(r"MOVED ([0-9]{1,5}) (.*):([0-9]{1,5})")


class UnusableSlots(ValueError):
    """A node described the cluster in a form that is none of CLUSTER SLOTS."""


def slot_of_name(name: bytes) -> int:
    """Returns a name's slot: that of the part in the first braces, or of all of it without one."""
    start = name.find(b"{") + 1
    end = name.find(b"}", start)
    return slot_of(name[start:end] if 0 < start < end else name)


def parsed_slots(reply: Reply, answering: EngineAddress) -> list[EngineAddress | None]:
    """Returns the primary of each slot, or None for a slot that has none.

    ``answering`` is the node that replied. A node without a host of its own has that one's.
    Raises :class:`UnusableSlots`.
    """
    owners: list[EngineAddress | None] = [None] * SLOT_COUNT
    if not isinstance(reply, list):
        raise UnusableSlots(f"{reply!r} is no list of slots")
    for each in reply:
        match each:
            case [int(first), int(last), [bytes() | None as host, int(port), *_], *_] if (
                0 <= first <= last < SLOT_COUNT
            ):
                owner = _address(answering, (host or b"").decode("ascii", "replace"), port)
                owners[first : last + 1] = [owner] * (last + 1 - first)
            case _:
                raise UnusableSlots(f"{each!r} is no range of slots")
    return owners


def moved_slot(message: str, answering: EngineAddress) -> tuple[int, EngineAddress] | None:
    """Returns the slot and the node of a MOVED error, or None for another error."""
    found = _MOVED.fullmatch(message)
    if found is None or int(found[1]) >= SLOT_COUNT:
        return None
    return int(found[1]), _address(answering, found[2], int(found[3]))


def _address(answering: EngineAddress, host: str, port: int) -> EngineAddress:
    known = host if host not in ("", "?") else answering.host
    return EngineAddress(None, known, port, answering.is_tls)
