"""benchmarks/in_flight.py with sizes so small that its figures mean nothing."""

import json

import in_flight
import pytest
import typer
from typer.testing import CliRunner


def test_each_case_is_measured_beside_one_without(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each case is compared with its first way, which differs from itself by 0."""
    monkeypatch.setattr(in_flight, "QUICK", 1)
    monkeypatch.setattr(in_flight, "OPEN", 10)
    monkeypatch.setattr(in_flight, "OPEN_LONG", 3)
    monkeypatch.setattr(in_flight, "SLOTS", 10_000)
    app = typer.Typer()
    app.command()(in_flight.main)
    result = CliRunner().invoke(app, ["--quick", "--json"])
    assert result.exit_code == 0, result.output
    cases = json.loads(result.stdout)["cases"]
    assert len(cases) == 3
    for figures in cases.values():
        first, *others = figures.values()
        assert first["more_us"] == 0
        assert all(each["median_us"] > 0 for each in others)


def test_what_is_asked_for_is_in_flight_there() -> None:
    """The measured match finds a prefill in flight that agrees with it to the end."""
    world = in_flight.World()
    asked = in_flight.prompt(in_flight.SHORT, 2, in_flight.SHORT // 2)
    for number in range(4):
        world.acquire(in_flight.prompt(in_flight.SHORT, number, in_flight.SHORT // 2))
    peeked = world.cache.peek(world.caller.identity, in_flight.NAMESPACE_ID, asked, in_flight.NOW)
    assert peeked.in_flight is not None
    assert peeked.in_flight.token_count == (in_flight.SHORT - 1) // 16 * 16
