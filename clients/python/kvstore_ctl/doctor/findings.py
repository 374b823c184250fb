"""Findings of kvstore-ctl doctor, one for each check."""

from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple

from rich.table import Table
from rich.text import Text

from kvstore_ctl.terminal_text import printable


class Verdict(Enum):
    """The outcome of a check. ``SKIPPED`` checks cannot be made from here."""

    OK = "ok"
    SKIPPED = "skipped"
    WARNING = "warning"
    FAILED = "failed"


STYLES = {
    Verdict.OK: "green",
    Verdict.SKIPPED: "dim",
    Verdict.WARNING: "yellow",
    Verdict.FAILED: "bold red",
}


class Finding(NamedTuple):
    """The result of one check, with advice if something is wrong."""

    check: str
    outcome: Verdict
    found: str
    advice: str = ""


def ok(check: str, found: str) -> Finding:
    """Returns a finding without a problem."""
    return Finding(check, Verdict.OK, found)


def skipped(check: str, why: str) -> Finding:
    """Returns a finding of a check that could not be made."""
    return Finding(check, Verdict.SKIPPED, why)


def warning(check: str, found: str, advice: str) -> Finding:
    """Returns a finding that costs something, or may."""
    return Finding(check, Verdict.WARNING, found, advice)


def failed(check: str, found: str, advice: str) -> Finding:
    """Returns a finding that has to be fixed."""
    return Finding(check, Verdict.FAILED, found, advice)


def worst(findings: Iterable[Finding]) -> Verdict:
    """Returns the worst outcome, or ok without findings. Skipped is better than ok."""
    order = [Verdict.SKIPPED, Verdict.OK, Verdict.WARNING, Verdict.FAILED]
    return max((each.outcome for each in findings), key=order.index, default=Verdict.OK)


def findings_table(findings: Iterable[Finding]) -> Table:
    """Returns a table of the findings, in their order."""
    table = Table(title="doctor", title_justify="left", box=None, pad_edge=False)
    for column in ("check", "outcome"):
        table.add_column(column, no_wrap=True)
    table.add_column("finding and advice", overflow="fold")
    for each in findings:
        said = Text(printable(each.found))
        if each.advice:
            said.append(f"\n  do: {printable(each.advice)}")
        style = STYLES[each.outcome]
        table.add_row(Text(each.check), Text(each.outcome.value, style=style), said)
    return table


def plain_findings(findings: Iterable[Finding]) -> list[dict[str, str]]:
    """Returns the findings as plain values for JSON."""
    return [
        {
            "check": each.check,
            "outcome": each.outcome.value,
            "found": each.found,
            "advice": each.advice,
        }
        for each in findings
    ]
