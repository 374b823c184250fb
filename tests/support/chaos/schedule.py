"""The fault of each worker: every point with every action, in turn."""

import random
from collections.abc import Iterator, Sequence
from itertools import product
from typing import NamedTuple

from kvstore_client.fault_points import STEPS

KILL, STOP = "kill", "stop"
CUTS = ("cut-attach", "cut-grpc")
ACTIONS = (KILL, STOP, *CUTS)
# The client's steps, and the light worker's own: between the halves of a page's write,
# behind the last page's, and between two looks at what it matched.
POINTS = (
    *(f"{step}.{when}" for step in STEPS for when in ("before", "after")),
    *("write.half", "write.after", "read.between"),
)
# Where a worker has slots that nobody may have before it is dead: it is stopped there twice.
RESERVED = ("acquire.after", "write.half", "insert.before")
# A worker comes to these once in its life, or at its end.
ONCE = ("hello", "grant", "bind", "open", "extent", "revoke")
# And to these not often.
RARE = ("renew", "reserve", "write")
# Requests of a worker that is to leave soon, and of one that has to live until it renews.
SHORT_LIFE, LONG_LIFE = 12, 150


class Fault(NamedTuple):
    """One worker's fault, the visit of a point that it meets, and otherwise its lifetime."""

    point: str
    action: str
    visit: int
    life: int

    @property
    def kind(self) -> str:
        """Its point and action."""
        return f"{self.point}={self.action}"

    @property
    def text(self) -> str:
        """As ``plan_faults`` takes it."""
        return f"{self.point}:{self.visit}={self.action}"


def kinds_of(text: str) -> list[tuple[str, str]]:
    """Returns the kinds that a text names, all for none; raises ``ValueError`` for unknown ones."""
    if not text:
        # Half of the cuts at each point, so that kills, stops and cuts are as many.
        cuts = [(point, CUTS[number % 2]) for number, point in enumerate(POINTS)]
        return [*product(POINTS, (KILL, STOP)), *cuts, *product(RESERVED, (STOP,))]
    kinds = []
    for each in text.split(","):
        point, _, action = each.partition("=")
        if point not in POINTS or action not in ACTIONS:
            raise ValueError(f"{each!r} is not POINT=ACTION with {POINTS} and {ACTIONS}")
        kinds.append((point, action))
    return kinds


def faults(kinds: Sequence[tuple[str, str]], chosen: random.Random) -> Iterator[Fault]:
    """Yields faults without end: all kinds in an order of chance, then all again."""
    while True:
        for point, action in chosen.sample(kinds, len(kinds)):
            step = point.partition(".")[0]
            visit = 1 if step in ONCE else chosen.randint(1, 4)
            if step in RARE:
                visit = chosen.randint(1, 2)
            life = LONG_LIFE if step == "renew" else SHORT_LIFE
            yield Fault(point, action, visit, chosen.randint(life // 2, life))
