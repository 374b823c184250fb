"""The actions of the property test on an engine with a connector."""

from collections.abc import Callable
from dataclasses import asdict, dataclass

from naive.engine import LOOKUP_TIMEOUT, NaiveEngine
from naive.pages import NaivePages
from naive.request import NaiveRequest

PAGE = 3
DRAIN_STEPS = 60
LONGEST_PROMPT = 14


@dataclass
class Setup:
    """An engine, and a store's size."""

    load_async: bool = True
    save_output: bool = True
    ranks: int = 1
    lag: int = 0
    saves_beside: bool = False
    blocks: int = 30
    slots: int = 40


class PlannerWorld:
    """One engine and its store. Each action's number chooses what it is about."""

    def __init__(self, setup: Setup) -> None:
        options = asdict(setup)
        self.store = NaivePages(PAGE, options.pop("slots"))
        self.engine = NaiveEngine(self.store, chunk=4, **options)
        self.count = 0

    def arrive(self, number: int) -> None:
        """A request comes; prompts have beginnings in common."""
        self.count += 1
        kind, length = number % 3, 1 + number // 3 % LONGEST_PROMPT
        self.engine.arrive(f"r{self.count}", [*([kind % 2] * length), kind])

    def step(self, number: int) -> None:
        """The engine goes on, whatever the store answers."""
        for _ in range(1 + number % 3):
            self.engine.step()

    def go_on(self, number: int) -> None:
        """The engine goes on, and the store answers at once."""
        for _ in range(1 + number % 5):
            self.engine.answers.answer_all()
            self.engine.step()

    def answer(self, number: int) -> None:
        """The store answers one of the questions."""
        if asked := self.engine.answers.asked:
            self.engine.answers.answer(number % len(asked))

    def end_load(self, number: int) -> None:
        """A rank ends a load, well or not."""
        if loads := self._open_loads():
            self.engine.end_load(loads[number // 4 % len(loads)], ok=number % 4 > 0)

    def end_save(self, number: int) -> None:
        """A rank ends a save beside steps, well or not."""
        if saves := list(self.engine.saving):
            self.engine.end_save(saves[number // 8 % len(saves)], ok=number % 8 > 0)

    def finish(self, number: int) -> None:
        """A request ends, or is aborted, wherever it is."""
        if requests := self._unfinished():
            self.engine.finish(requests[number % len(requests)])

    def preempt(self, number: int) -> None:
        """A request's blocks are taken away."""
        if running := self.engine.running:
            self.engine.preempt(running[number % len(running)])

    def time_out(self, number: int) -> None:
        """Ends the time of every request that waits for a lookup."""
        del number
        self.engine.now += LOOKUP_TIMEOUT

    def change(self, number: int) -> None:
        """The store goes, is quick, somebody else saves, a copy fails, or a load within a step."""
        self.engine.usable = number % 7 > 0
        self.engine.joining = number % 14 == 0
        self.store.down = number % 7 == 1
        self.store.someone_else_saves = number % 7 == 2
        self.engine.fail_next_loads = int(number % 7 > 3)
        self.engine.answers.come_in_time = number % 3 == 0

    def reset(self, number: int) -> None:
        """Other weights are loaded, say: nothing of before is to be used."""
        del number
        self.engine.planner.forget()

    def end(self) -> None:
        """Ends every request, and checks that nothing is held, reserved or kept."""
        engine = self.engine
        self.store.down = False
        for request in self._unfinished():
            engine.finish(request)
        for _ in range(DRAIN_STEPS):
            engine.answers.answer_all()
            engine.step()
            for name in self._open_loads():
                engine.end_load(name, ok=True)
            for job in list(engine.saving):
                engine.end_save(job)
        while engine.steps:
            engine.take_output()
        engine.answers.answer_all()
        assert self.store.holds == []
        assert self.store.reserved == set()
        assert not engine.held
        assert not engine.loading
        assert sorted(engine.spare) == sorted(engine.kv)
        assert engine.planner.is_idle

    def _open_loads(self) -> list[str]:
        """Returns whose loads some rank has not ended."""
        return [
            name
            for name, (_, transfer) in self.engine.loading.items()
            if transfer is not None and self.engine.ended_loads[name] < self.engine.ranks
        ]

    def _unfinished(self) -> list[NaiveRequest]:
        """Returns the requests that have not ended."""
        requests = self.engine.requests.values()
        return [each for each in requests if each.request_id not in self.engine.finished]


# As often as each is named.
ACTIONS: list[Callable[[PlannerWorld, int], None]] = [
    *[PlannerWorld.arrive] * 4,
    *[PlannerWorld.step] * 4,
    *[PlannerWorld.go_on] * 4,
    *[PlannerWorld.answer] * 2,
    *[PlannerWorld.end_load] * 4,
    *[PlannerWorld.end_save] * 2,
    *[PlannerWorld.finish] * 2,
    PlannerWorld.preempt,
    PlannerWorld.time_out,
    PlannerWorld.change,
    PlannerWorld.reset,
]
