"""The cache machine's rules about prefills under way."""

from math import inf

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from kvstore.core.values.requests import MatchOptions
from machine.inserts import insert_into
from machine.reservations import acquire_and_check
from machine.state import COUNTS, PAGES, TAILS, MachineState
from naive.holds import ModelLease, ModelReservation

# Those who ask next, and within which time what they yield to has to have got on.
OTHERS = st.lists(st.sampled_from([None, inf, inf, 2.0]), max_size=2)
PAUSES = st.sampled_from([0.0, 3.0])


def prefills(machine: MachineState) -> list[tuple[ModelLease, int, ModelReservation]]:
    """Returns the announced reservations of leases that may insert."""
    return [
        (lease, reservation_id, known)
        for lease in machine.model.leases.values()
        if lease.processes and not lease.expired
        for reservation_id, known in lease.reservations.items()
        if known.announced
    ]


@precondition(lambda machine: machine.model.leases)
@rule(
    data=st.data(),
    pages=PAGES,
    tail=TAILS,
    ahead=st.integers(-2, 1),
    others=OTHERS,
    pause=PAUSES,
)
def compute(
    machine: MachineState,
    data: st.DataObject,
    pages: list[int],
    tail: tuple[int, int],
    ahead: int,
    others: list[float | None],
    pause: float,
) -> None:
    """Acquires a sequence; before anything is inserted others ask for what begins alike."""
    COUNTS["compute"] += 1
    tokens = machine.sequence(data, pages, tail)
    for idle in [None, *others]:
        lease = machine.member(data)
        if lease is None:
            return
        total = max(len(machine.model.pages_of(tokens)) + ahead, 0)
        beyond = total - len(machine.model.pages_of(tokens))
        acquire_and_check(machine, lease, tokens, beyond, MatchOptions(machine.fresh()), idle)
        announced = sorted({known.announced for *_, known in prefills(machine)})
        if announced:
            tokens = data.draw(st.sampled_from(announced))
            cut = data.draw(st.integers(1, len(tokens) // machine.model.width))
            tokens = tokens[: cut * machine.model.width] + machine.tokens(pages[:2], tail)
            machine.now += pause
    if prefills(machine):
        get_on(machine, data)


@precondition(lambda machine: bool(prefills(machine)))
@rule(data=st.data())
def get_on(machine: MachineState, data: st.DataObject) -> None:
    """A worker inserts some of what it announced, or something else."""
    COUNTS["get_on"] += 1
    lease, reservation_id, known = data.draw(st.sampled_from(prefills(machine)))
    done = (known.start + known.inserted) * machine.model.width
    pages = data.draw(st.integers(0, 2))
    tokens = known.announced[: done + pages * machine.model.width]
    if not pages:
        tokens = known.announced[:done] + machine.tokens([data.draw(st.integers(0, 3))])
    base = ("pin", known.pin_id) if known.pin_id in lease.pins else None
    insert_into(machine, lease, reservation_id, tokens, base)
