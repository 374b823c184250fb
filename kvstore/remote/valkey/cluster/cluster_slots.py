"""The slots of a cluster: a name's slot, and the nodes that have the slots."""

import re
from typing import Final, NamedTuple

from kvstore.remote.secret.names import SLOT_COUNT, slot_of
from kvstore.remote.valkey.address import EngineAddress
from kvstore.remote.valkey.resp import Reply

# A range for each slot is the worst case, with three nodes of some parts in each.
MOST_PARTS: Final = 1 << 18
_REDIRECTION: Final = re.compile(r"(MOVED|ASK) ([0-9]{1,5}) (.*):([0-9]{1,5})")


class Redirection(NamedTuple):
    """The node that a server names in place of itself.

    It has the whole slot, or, after an ASK, one name of a slot that is on its way.
    """

    slot: int
    address: EngineAddress
    is_ask: bool


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


def redirection(message: str, answering: EngineAddress) -> Redirection | None:
    """Returns what a MOVED or ASK error says, or None for another error."""
    found = _REDIRECTION.fullmatch(message)
    if found is None or int(found[2]) >= SLOT_COUNT:
        return None
    address = _address(answering, found[3], int(found[4]))
    return Redirection(int(found[2]), address, found[1] == "ASK")


def _address(answering: EngineAddress, host: str, port: int) -> EngineAddress:
    known = host if host not in ("", "?") else answering.host
    return EngineAddress(None, known, port, answering.is_tls)
