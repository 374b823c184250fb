"""The turn that one thread has at a time."""

from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from threading import Event

import pytest

from kvstore.service.serving_turn import ServingTurn, let_others_serve
from kvstore_client.testing import wait_until


def test_one_thread_has_it_until_it_passes_it_on() -> None:
    """Another thread gets it then, and the first one's block ends without it."""
    turn, begun = ServingTurn(), Event()

    def wait_for_it() -> bool:
        begun.set()
        with turn:
            return turn.is_mine

    with ThreadPoolExecutor(1) as pool:
        with turn:
            other = pool.submit(wait_for_it)
            assert begun.wait(30)
            assert turn.is_mine
            assert not other.done()
            let_others_serve()
            assert other.result(30)
            assert not turn.is_mine
            # Nothing is left to pass on.
            let_others_serve()
        assert not turn.is_mine
    with turn:
        assert turn.is_mine


def test_threads_have_it_in_the_order_in_which_they_came() -> None:
    """A thread that passes it on and wants it again is behind those that wait."""
    turn, order = ServingTurn(), SimpleQueue[int]()

    def take(number: int) -> None:
        with turn:
            order.put(number)

    with ThreadPoolExecutor(3) as pool, turn:
        for number in range(3):
            pool.submit(take, number)
            assert wait_until(lambda count=number + 1: len(turn._waiting) == count)
        turn.pass_on()
        with turn:
            order.put(3)
    assert [order.get(timeout=30) for _ in range(4)] == [0, 1, 2, 3]


def test_an_exception_passes_it_on() -> None:
    """A block that fails leaves the turn to the next."""
    turn = ServingTurn()
    with pytest.raises(KeyError), turn:
        raise KeyError
    with turn:
        assert turn.is_mine
