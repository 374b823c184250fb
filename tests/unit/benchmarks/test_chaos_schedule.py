"""The schedule of faults for each worker of a chaos run."""

import random
from itertools import islice

import pytest

from chaos.schedule import POINTS, faults, kinds_of
from kvstore_client.fault_points import STEPS, FaultPlan


def test_every_point_is_killed_and_stopped_in_each_round() -> None:
    """No kind of fault repeats before all others have happened."""
    kinds = kinds_of("")
    rounds = faults(kinds, random.Random(1))
    for _ in range(2):
        coming = [each.kind for each in islice(rounds, len(kinds))]
        assert sorted(coming) == sorted(f"{point}={action}" for point, action in kinds)
    for step in STEPS:
        for action in ("kill", "stop"):
            assert (f"{step}.before", action) in kinds
            assert (f"{step}.after", action) in kinds
    assert {point for point, action in kinds if action.startswith("cut")} == set(POINTS)


def test_a_fault_is_one_that_a_client_understands() -> None:
    """The text of each fault is a plan of fault points."""
    for fault in islice(faults(kinds_of(""), random.Random(1)), 100):
        cuts = dict.fromkeys(("cut-attach", "cut-grpc", "kill", "stop"), lambda: None)
        plan = FaultPlan(fault.text, cuts)
        visits = [plan.visit(fault.point) for _ in range(fault.visit)]
        assert [each is not None for each in visits] == [False] * (fault.visit - 1) + [True]


def test_kinds_can_be_named() -> None:
    """Only the named kinds happen."""
    assert kinds_of("write.half=kill,insert.after=cut-grpc") == [
        ("write.half", "kill"),
        ("insert.after", "cut-grpc"),
    ]


@pytest.mark.parametrize("text", ["write.half", "write.half=burn", "nowhere.after=kill"])
def test_an_unknown_kind_is_refused(text: str) -> None:
    """An unknown kind is refused, because a misspelt fault would never happen."""
    with pytest.raises(ValueError, match="POINT=ACTION"):
        kinds_of(text)
