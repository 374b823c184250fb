"""Requests that a naive engine runs from arrival to end, with nothing left held."""

from naive.engine import NaiveEngine
from naive.pages import NaivePages
from naive.request import NaiveRequest

PAGE = 4
PROMPT = [5, 6, 7, 8, 9, 10, 11, 12, 13, 14]


def engine(**options: object) -> NaiveEngine:
    """An engine with a store of its own, unless one is given."""
    store = options.pop("store", None) or NaivePages(PAGE, 40)
    return NaiveEngine(store, **options)  # type: ignore[arg-type]


def run(world: NaiveEngine, name: str, prompt: list[int], new_tokens: int = 1) -> NaiveRequest:
    """Runs one request to its end, with every answer there at once."""
    world.arrive(name, prompt)
    request = world.requests[name]
    for _ in range(100):
        world.answers.answer_all()
        world.step()
        for loading, (_, transfer) in list(world.loading.items()):
            if transfer is not None and world.ended_loads[loading] < world.ranks:
                world.end_load(loading, ok=True)
        if request.num_tokens >= len(prompt) + new_tokens:
            break
    world.finish(request)
    settle(world)
    return request


def settle(world: NaiveEngine) -> None:
    """Step until nothing is under way, and see that nothing is held any more."""
    for _ in range(30):
        world.answers.answer_all()
        world.step()
    while world.steps:
        world.take_output()
    world.answers.answer_all()
    assert world.store.holds == []
    assert world.store.reserved == set()
    assert not world.held
    assert len(world.spare) == len(world.kv)
