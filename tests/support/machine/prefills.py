"""The cache machine's rules about prefills under way."""

from math import inf

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from kvstore.core.values.requests import MatchOptions
from machine.reserving import ReserveRules
from machine.state import COUNTS, PAGES, TAILS
from naive.holds import ModelLease, ModelReservation

# Those who ask next, and within which time what they yield to has to have got on.
OTHERS = st.lists(st.sampled_from([None, inf, inf, 2.0]), max_size=2)
PAUSES = st.sampled_from([0.0, 3.0])


class PrefillRules(ReserveRules):
    """Workers announce what they compute, get on with it, and yield to one another."""

    def prefills(self) -> list[tuple[ModelLease, int, ModelReservation]]:
        """Returns the announced reservations of leases that may insert."""
        return [
            (lease, reservation_id, known)
            for lease in self.model.leases.values()
            if lease.processes and not lease.expired
            for reservation_id, known in lease.reservations.items()
            if known.announced
        ]

    @precondition(lambda self: self.model.leases)
    @rule(
        data=st.data(),
        pages=PAGES,
        tail=TAILS,
        ahead=st.integers(-2, 1),
        others=OTHERS,
        pause=PAUSES,
    )
    def compute(
        self,
        data: st.DataObject,
        pages: list[int],
        tail: tuple[int, int],
        ahead: int,
        others: list[float | None],
        pause: float,
    ) -> None:
        """Acquires a sequence; before anything is inserted others ask for what begins alike."""
        COUNTS["compute"] += 1
        tokens = self.sequence(data, pages, tail)
        for idle in [None, *others]:
            lease = self.member(data)
            if lease is None:
                return
            total = max(len(self.model.pages_of(tokens)) + ahead, 0)
            beyond = total - len(self.model.pages_of(tokens))
            self.acquire_and_check(lease, tokens, beyond, MatchOptions(self.fresh()), idle)
            announced = sorted({known.announced for *_, known in self.prefills()})
            if announced:
                tokens = data.draw(st.sampled_from(announced))
                cut = data.draw(st.integers(1, len(tokens) // self.model.width))
                tokens = tokens[: cut * self.model.width] + self.tokens(pages[:2], tail)
                self.now += pause
        if self.prefills():
            self.get_on(data)

    @precondition(lambda self: self.prefills())
    @rule(data=st.data())
    def get_on(self, data: st.DataObject) -> None:
        """A worker inserts some of what it announced, or something else."""
        COUNTS["get_on"] += 1
        lease, reservation_id, known = data.draw(st.sampled_from(self.prefills()))
        done = (known.start + known.inserted) * self.model.width
        pages = data.draw(st.integers(0, 2))
        tokens = known.announced[: done + pages * self.model.width]
        if not pages:
            tokens = known.announced[:done] + self.tokens([data.draw(st.integers(0, 3))])
        base = ("pin", known.pin_id) if known.pin_id in lease.pins else None
        self.insert_into(lease, reservation_id, tokens, base)
