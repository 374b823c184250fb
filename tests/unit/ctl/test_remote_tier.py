"""The remote tier in the tables, in top and in doctor."""

from typing import Any

import pytest
from rich.console import Console

from kvstore.v1 import store_pb2
from kvstore_ctl.doctor.findings import Finding, Verdict
from kvstore_ctl.doctor.remote_checks import remote_checks
from kvstore_ctl.remote_tables import is_alarm, remote_line, remote_table

OPEN: dict[str, Any] = {
    "state": "STATE_OPEN",
    "address": "valkeys://cache:6379",
    "key_id": b"\x01\x02\xab\xcd",
    "write_policy": "through",
    "hit_look_count": 60,
    "partial_look_count": 20,
    "missed_look_count": 20,
    "look_seconds": 0.0012,
    "read_page_count": 640,
    "read_byte_count": 640 << 20,
    "written_page_count": 32,
}


def remote(**changes: Any) -> store_pb2.RemoteStats:  # noqa: ANN401 - fields of the message
    """Returns the statistics of a tier that works, with some changes."""
    return store_pb2.RemoteStats(**(OPEN | changes))


def checks(stats: store_pb2.RemoteStats | None) -> dict[str, Finding]:
    """Returns the findings by their names. The last of one name stays."""
    return {each.check: each for each in remote_checks(store_pb2.GetStatsResponse(remote=stats))}


def text_of(stats: store_pb2.RemoteStats) -> str:
    """Returns the table as text."""
    console = Console(width=120, record=True)
    with console.capture() as printed:
        console.print(remote_table(stats))
    return printed.get()


def test_a_tier_that_works_is_fine() -> None:
    """Each check is ok, and no line is an alarm."""
    found = checks(remote())
    assert {each.outcome for each in found.values()} == {Verdict.OK}
    assert "0102abcd" in found["remote tier"].found
    assert not is_alarm(remote())
    line = remote_line(remote())
    assert line == "open; 80 of 100 lookups found pages; read 640 pages; wrote 32"


def test_a_store_without_the_tier_says_so() -> None:
    """One check, and it is ok."""
    assert [each.outcome for each in checks(None).values()] == [Verdict.OK]


def test_a_tenant_sees_the_state() -> None:
    """The rest is an admin's."""
    stats = store_pb2.RemoteStats(state=store_pb2.RemoteStats.STATE_AWAY)
    assert checks(stats)["remote tier"].outcome is Verdict.SKIPPED
    assert remote_line(stats) == "away"
    assert "away" in text_of(stats)


@pytest.mark.parametrize(
    ("changes", "check", "outcome", "words"),
    [
        (
            {"state": "STATE_AWAY", "reason": "EngineUnreachable: refused"},
            *("remote tier", Verdict.WARNING, "refused"),
        ),
        (
            {"state": "STATE_AWAY", "reason": "CredentialRefused: WRONGPASS"},
            *("remote tier", Verdict.WARNING, "--remote-credential-file"),
        ),
        (
            {"state": "STATE_AWAY", "reason": "certificate verify failed"},
            *("remote tier", Verdict.WARNING, "--remote-ca-file"),
        ),
        ({"writes_stopped": True}, "remote tier", Verdict.FAILED, "memory"),
        ({"pending_removal_count": 2}, "remote removals", Verdict.FAILED, "2 namespaces"),
        ({"failed_look_count": 10}, "remote lookups", Verdict.WARNING, "--remote-timeout"),
        (
            {"hit_look_count": 0, "partial_look_count": 0, "missed_look_count": 90},
            *("remote lookups", Verdict.WARNING, "key id"),
        ),
        (
            {"rejected_pages": [{"reason": "secret", "count": 3}]},
            *("remote pages", Verdict.WARNING, "other keys"),
        ),
        (
            {"rejected_pages": [{"reason": "seal", "count": 3}]},
            *("remote pages", Verdict.WARNING, "bad memory"),
        ),
        ({"lost_revision_count": 1}, "remote revisions", Verdict.WARNING, "volatile-ttl"),
        ({"forged_revision_count": 1}, "remote revisions", Verdict.WARNING, "who else"),
        ({"clock_skew_seconds": -90.0}, "remote clock", Verdict.WARNING, "90.0 s behind"),
        (
            {
                "findings": [
                    {
                        "kind": "KIND_HITS",
                        "setting": "maxmemory",
                        "value": "0",
                        "reason": "it grows",
                    }
                    | {"remedy": "set it"}
                ]
            },
            *("engine settings", Verdict.WARNING, "maxmemory 0: it grows set it"),
        ),
        (
            {
                "findings": [
                    {"kind": "KIND_PROMISE", "setting": "a", "value": "b", "reason": "c"}
                    | {"remedy": "d"}
                ]
            },
            *("engine settings", Verdict.FAILED, "a b: c"),
        ),
    ],
)
def test_what_is_wrong_is_said_with_advice(
    changes: dict[str, Any], check: str, outcome: Verdict, words: str
) -> None:
    """Each wrong figure has one finding, which says what to do; the others stay ok."""
    found = checks(remote(**changes))
    finding = found.pop(check)
    assert finding.outcome is outcome
    assert words in f"{finding.found} {finding.advice}"
    assert finding.advice
    assert {each.outcome for each in found.values()} == {Verdict.OK}


def test_what_an_engine_does_not_tell_is_skipped() -> None:
    """The rights in the docs allow no look at the settings, which is no fault."""
    finding = {"kind": "KIND_UNKNOWN", "setting": "maxmemory", "reason": "CONFIG is forbidden"}
    assert checks(remote(findings=[finding]))["engine settings"].outcome is Verdict.SKIPPED


def test_few_lookups_say_nothing() -> None:
    """A fresh store is not judged."""
    found = checks(remote(hit_look_count=0, partial_look_count=0, missed_look_count=3))
    assert found["remote lookups"].outcome is Verdict.OK


@pytest.mark.parametrize(
    "changes", [{"state": "STATE_AWAY"}, {"pending_removal_count": 1}, {"writes_stopped": True}]
)
def test_a_broken_promise_is_an_alarm(changes: dict[str, Any]) -> None:
    """The line is red then."""
    assert is_alarm(remote(**changes))


def test_the_line_and_the_table_show_what_is_pending() -> None:
    """An operator who watches sees it without doctor."""
    stats = remote(
        state="STATE_AWAY",
        reason="DeadlinePassed: \x1b[31mlate",
        pending_removal_count=1,
        away_count=4,
        refused_pages=[{"reason": "queue", "count": 7}, {"reason": "old", "count": 0}],
    )
    line = remote_line(stats)
    assert line.startswith("away (DeadlinePassed")
    assert line.endswith("1 removal not confirmed")
    shown = text_of(stats)
    for words in ("0102abcd", "queue 7", "60, 20, 20", "4 (DeadlinePassed", "640, 640", "1.2"):
        assert words in shown
    assert "old 0" not in shown
    assert "\x1b[31m" not in shown
