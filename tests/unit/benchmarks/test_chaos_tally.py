"""The counts and findings of a chaos run."""

import pytest

from chaos.tally import BROKEN, COUNTED, WRONGS, Tally


@pytest.mark.parametrize("figure", [*WRONGS, *BROKEN])
def test_one_finding_is_one_too_many(figure: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A finding is counted and printed with its run, and the run is not clean."""
    tally = Tally("seed 5")
    tally.wrong(figure, "nothing", 0)
    assert tally.clean
    tally.wrong(figure, "something", 2)
    assert not tally.clean
    assert tally.figures()[figure] == 2
    assert capsys.readouterr().err == f"{figure}: something (seed 5)\n"


def test_figures_are_there_from_the_beginning() -> None:
    """All counted figures exist from the start with 0, and come first."""
    names = [*COUNTED, *WRONGS, *BROKEN]
    assert list(Tally("").figures().items()) == [*((each, 0) for each in names), ("faults", {})]


def test_messages_of_workers_add_up() -> None:
    """Counts are added, faults are counted by kind, and wrong pages are findings."""
    tally = Tally("")
    for number in range(100):
        tally.take({"counts": {"hits": 2}, "seconds": [number / 1_000]})
    tally.take({"struck": "insert.after=cut-grpc"})
    tally.take({"told": "corrupted"})
    figures = tally.figures()
    assert figures["hits"] == 200
    assert figures["faults"] == {"insert.after=cut-grpc": 1}
    assert figures["p50_ms"] == pytest.approx(50, abs=1)
    assert figures["p99_ms"] == pytest.approx(99, abs=1)
    assert tally.told == {"corrupted"}
    assert tally.clean
    tally.take({"wrong": "a page"})
    assert tally["wrong_pages"] == 1


def test_what_has_not_happened_is_named() -> None:
    """A figure is listed as missing until it is counted, unless it cannot happen."""
    tally = Tally("")
    assert "hits" in tally.without()
    assert "answers" not in tally.without("answers")
    tally.add("hits")
    assert "hits" not in tally.without()
