"""Hints of requests, which never fail a request."""

from collections import Counter
from types import SimpleNamespace

import pytest

from kvstore_client import ReuseHint
from kvstore_vllm.engine.reuse_hints import ReuseHints


def read(params: object, counts: "Counter[str] | None" = None) -> ReuseHint | None:
    """Reads a request's ``kv_transfer_params``."""
    request = SimpleNamespace(kv_transfer_params=params)
    return ReuseHints(Counter() if counts is None else counts).read(request)


@pytest.mark.parametrize(
    ("found", "hint"),
    [
        ({"expected_reuse": "one_shot"}, ReuseHint("one_shot")),
        (
            {"expected_reuse": "continues", "horizon_seconds": 600, "priority": 2},
            ReuseHint("continues", 600.0, 2),
        ),
        ({"priority": -1}, ReuseHint(None, None, -1)),
        ({}, ReuseHint()),
        ({"expected_reuse": None, "horizon_seconds": 0.5}, ReuseHint(None, 0.5)),
    ],
)
def test_a_hint_is_the_client_s(found: object, hint: ReuseHint) -> None:
    """Each field may be left out."""
    assert read({"kvstore": found, "do_remote_prefill": False}) == hint


@pytest.mark.parametrize("params", [None, {}, {"kvstore": None}, {"other": 1}])
def test_a_request_without_a_hint_has_none(params: object) -> None:
    """Nothing is counted for it."""
    counts: Counter[str] = Counter()
    assert read(params, counts) is None
    assert not counts


@pytest.mark.parametrize(
    "found",
    [
        "one_shot",
        ["one_shot"],
        {"expected_reuse": "never"},
        {"expected_reuse": ["one_shot"]},
        {"expected_reuse": {}},
        {"expected_reuse": 1},
        {"horizon": 5},
        {"horizon_seconds": 0},
        {"horizon_seconds": -1},
        {"horizon_seconds": "60"},
        {"horizon_seconds": True},
        {"horizon_seconds": float("nan")},
        {"horizon_seconds": float("inf")},
        {"horizon_seconds": 10**400},
        {"priority": 1 << 31},
        {"priority": 1.0},
        {"priority": True},
        {1: 2, "priority": 1},
    ],
    ids=lambda found: repr(found)[:40],
)
def test_a_malformed_hint_is_ignored_and_counted(found: object) -> None:
    """The request goes on as one without a hint."""
    counts: Counter[str] = Counter()
    assert read({"kvstore": found}, counts) is None
    assert counts == {"ignored_hints": 1}


def test_only_the_first_malformed_hint_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """A client that sends many fills no log."""
    counts: Counter[str] = Counter()
    hints = ReuseHints(counts)
    for _ in range(3):
        hints.read(SimpleNamespace(kv_transfer_params={"kvstore": "x"}))
    assert [record.message for record in caplog.records] == ["hint_ignored"]
    assert counts["ignored_hints"] == 3
