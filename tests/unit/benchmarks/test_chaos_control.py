"""The state that the processes of a chaos run share."""

from pathlib import Path

import pytest

from chaos.control import SERVER_POINTS, Control, Phase
from stores.store_world import make_world


def test_words_are_shared(tmp_path: Path) -> None:
    """Each side reads the values that the other wrote."""
    ours, theirs = Control(tmp_path / "control"), Control(tmp_path / "control")
    assert (theirs.phase, theirs.clock_offset, theirs.begun) == (Phase.FAULTS, 0.0, 0)
    ours.phase = Phase.END
    ours.begun = 17
    ours.jump(20.5)
    ours.jump(1.5)
    assert (theirs.phase, theirs.clock_offset, theirs.begun) == (Phase.END, 22.0, 17)


@pytest.mark.parametrize("point", SERVER_POINTS)
def test_the_server_takes_its_fault_once_and_where_it_is_meant(tmp_path: Path, point: str) -> None:
    """A fault happens once, at its own point."""
    ours, theirs = Control(tmp_path / "control"), Control(tmp_path / "control")
    assert theirs.take(point) is None
    ours.arm(point, "stop")
    assert ours.armed
    assert [theirs.take(each) for each in SERVER_POINTS if each != point] == [None] * (
        len(SERVER_POINTS) - 1
    )
    assert theirs.take(point) == "stop"
    assert not ours.armed
    assert theirs.take(point) is None


def test_a_fault_can_be_taken_back(tmp_path: Path) -> None:
    """A server that did not reach its point in time passes it without the fault."""
    control = Control(tmp_path / "control")
    control.arm(SERVER_POINTS[0], "kill")
    control.disarm()
    assert control.take(SERVER_POINTS[0]) is None


def test_the_points_are_methods_of_the_store() -> None:
    """Each point is before or after a method of a store."""
    store = make_world().store
    for point in SERVER_POINTS:
        step, _, when = point.partition(".")
        assert callable(getattr(store, step))
        assert when in ("before", "after")
