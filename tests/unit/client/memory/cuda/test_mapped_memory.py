"""The thread on which CUDA opens and closes memory."""

from queue import SimpleQueue
from threading import get_ident

import pytest

from kvstore_client.memory.cuda.mapped_memory import DeviceThread


def test_work_is_done_in_order_on_one_thread() -> None:
    """Posted work and awaited work run in order on one thread, which is not the caller's."""
    thread = DeviceThread()
    done: list[tuple[str, int]] = []
    thread.post(lambda: done.append(("posted", get_ident())))
    assert thread.run(lambda: done.append(("run", get_ident())) or 7) == 7
    assert [name for name, _ in done] == ["posted", "run"]
    assert len({ident for _, ident in done} | {get_ident()}) == 2


def test_what_work_raises_is_raised_where_it_is_waited_for() -> None:
    """An error is raised where the work is awaited, and the thread goes on."""
    thread = DeviceThread()

    def fail() -> None:
        raise ZeroDivisionError("work")

    thread.post(fail)
    with pytest.raises(ZeroDivisionError, match="work"):
        thread.run(fail)
    assert thread.run(lambda: 1) == 1


def test_work_that_is_done_is_not_kept() -> None:
    """The thread keeps no reference to its last work while it waits."""
    gone: SimpleQueue[str] = SimpleQueue()

    class Witness:
        def __del__(self) -> None:
            gone.put("gone")

    DeviceThread().post(Witness().__repr__)
    assert gone.get(timeout=30) == "gone"
