"""What kvstore-ctl doctor found: one finding a check."""

from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple

from rich.table import Table
from rich.text import Text

from kvstore_ctl.text import printable


class Outcome(Enum):
    """How a check ended; ``SKIPPED`` is what cannot be seen from here."""

    OK = "ok"
    SKIPPED = "skipped"
    WARNING = "warning"
    FAILED = "failed"


STYLES = {
    Outcome.OK: "green",
    Outcome.SKIPPED: "dim",
    Outcome.WARNING: "yellow",
    Outcome.FAILED: "bold red",
}


class Finding(NamedTuple):
    """What a check of this name found, and what to do; nothing where all is well."""

    check: str
    outcome: Outcome
    found: str
    advice: str = ""


def ok(check: str, found: str) -> Finding:
    """Returns that all is well."""
    return Finding(check, Outcome.OK, found)


def skipped(check: str, why: str) -> Finding:
    """Returns that nothing could be seen."""
    return Finding(check, Outcome.SKIPPED, why)


def warning(check: str, found: str, advice: str) -> Finding:
    """Returns what costs something, or may."""
    return Finding(check, Outcome.WARNING, found, advice)


def failed(check: str, found: str, advice: str) -> Finding:
    """Returns what has to be seen to."""
    return Finding(check, Outcome.FAILED, found, advice)


def worst(findings: Iterable[Finding]) -> Outcome:
    """Returns the worst outcome; ok of nothing. What was skipped is no worse than that."""
    order = [Outcome.SKIPPED, Outcome.OK, Outcome.WARNING, Outcome.FAILED]
    return max((each.outcome for each in findings), key=order.index, default=Outcome.OK)


def findings_table(findings: Iterable[Finding]) -> Table:
    """Returns the findings in their order."""
    table = Table(title="doctor", title_justify="left", box=None, pad_edge=False)
    for column in ("check", "outcome"):
        table.add_column(column, no_wrap=True)
    table.add_column("found, and what to do", overflow="fold")
    for each in findings:
        said = Text(printable(each.found))
        if each.advice:
            said.append(f"\n  do: {printable(each.advice)}")
        style = STYLES[each.outcome]
        table.add_row(Text(each.check), Text(each.outcome.value, style=style), said)
    return table


def plain_findings(findings: Iterable[Finding]) -> list[dict[str, str]]:
    """Returns the findings for programs."""
    return [
        {
            "check": each.check,
            "outcome": each.outcome.value,
            "found": each.found,
            "advice": each.advice,
        }
        for each in findings
    ]
