"""The table that a run prints, a line as each case ends."""

import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from engine_cases.case import SHOWN, Case

HEADINGS = f"{'case':<56} {'connector':<26} {'identical':<9} {'tokens loaded':>13} {'time':>7}"


class Table:
    """Cases as they end. One thread uses it."""

    def __init__(self) -> None:
        self.cases: list[Case] = []

    @contextmanager
    def case(self, name: str, connector: str = "") -> Iterator[Case]:
        """Runs a case in the ``with``; an exception in it is what is wrong with it."""
        case = Case(name, connector)
        began = time.perf_counter()
        try:
            yield case
        except Exception:  # noqa: BLE001  # the other cases still count
            case.wrong.append(traceback.format_exc()[-SHOWN:])
        case.seconds = time.perf_counter() - began
        self._print(case)

    @contextmanager
    def group(self, name: str) -> Iterator[None]:
        """Runs the cases of a set of engines; where these do not start, that is a wrong case."""
        try:
            yield
        except Exception:  # noqa: BLE001  # the other groups still count
            wrong = Case(name)
            wrong.wrong.append(traceback.format_exc()[-SHOWN:])
            self._print(wrong)

    @property
    def right(self) -> bool:
        """Returns whether at least one case ran, and all were right."""
        return bool(self.cases) and not any(case.wrong for case in self.cases)

    def _print(self, case: Case) -> None:
        if not self.cases:
            print(HEADINGS, flush=True)
        self.cases.append(case)
        identical = {None: "-", True: "yes", False: "NO"}[case.identical]
        mark = "  WRONG" if case.wrong else f"  {case.note}".rstrip()
        print(
            f"{case.name:<56} {case.connector or '-':<26} {identical:<9} {case.loaded:>13,} "
            f"{case.seconds:>6.1f}s{mark}",
            flush=True,
        )
        for line in case.wrong:
            print(f"    {line}", flush=True)
