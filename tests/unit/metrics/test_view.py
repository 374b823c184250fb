"""Views: however many ask, the store is asked once a second."""

from threading import Event, Thread

from kvstore.metrics.view import View, Views
from stores.metric_view import view_of
from stores.store_world import World


def test_a_view_is_kept_for_a_second(world: World) -> None:
    """And made anew for the first who asks after it."""
    now, made = 10.0, 0

    def make() -> View:
        nonlocal made
        made += 1
        return view_of(world.store)

    views = Views(make, lambda: now)
    first = views.now()
    now = 10.9
    assert views.now() is first
    now = 11.0
    assert views.now() is not first
    assert made == 2


def test_who_asks_while_one_is_made_gets_that_one(world: World) -> None:
    """They wait for it, and the store is not asked again."""
    asked, going, made = Event(), Event(), 0

    def make() -> View:
        nonlocal made
        made += 1
        asked.set()
        assert going.wait(30)
        return view_of(world.store)

    views = Views(make, lambda: 1.0)
    found: list[View] = []
    threads = [Thread(target=lambda: found.append(views.now())) for _ in range(3)]
    for each in threads:
        each.start()
    assert asked.wait(30)
    going.set()
    for each in threads:
        each.join(30)
    assert made == 1
    assert len(found) == len(threads)
    assert all(each is found[0] for each in found)


def test_a_view_that_failed_is_tried_again(world: World) -> None:
    """Nothing is kept of it."""
    failing = True

    def make() -> View:
        if failing:
            raise OSError
        return view_of(world.store)

    views = Views(make, lambda: 1.0)
    try:
        views.now()
    except OSError:
        failing = False
    assert views.now().ready
