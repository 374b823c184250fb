"""The demo of two hosts waits for the engine, and uses refused pages again."""

from io import StringIO
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rich.console import Console

from inference_worker.demo import hosts
from inference_worker.demo.hosts import Host, HostsDemo
from inference_worker.demo.line_process import LineProcess
from inference_worker.demo.table import DemoTable
from inference_worker.engine.engine import PAGE_TOKENS
from inference_worker.errors import WorkerError
from kvstore_client import Admin

PAGES = 3


class WorkerOfOneUse:
    """A worker whose pages the engine refuses, all but one, until they were used ``uses`` times."""

    name = "A"

    def __init__(self, uses: int) -> None:
        self.asked: list[dict[str, Any]] = []
        self._uses = uses

    def ask(self, **request: object) -> dict[str, Any]:
        """Answers one token."""
        self.asked.append(request)
        return {"output_ids": [1]}

    def stats(self) -> SimpleNamespace:
        """Returns what the store says of the engine."""
        through_store = sum(each.get("use_store", True) for each in self.asked)
        written = PAGES if through_store >= self._uses else 1
        refused = [SimpleNamespace(reason="away", count=PAGES - 1)]
        return SimpleNamespace(
            remote=SimpleNamespace(written_page_count=written, refused_pages=refused)
        )


def demo_of(worker: WorkerOfOneUse) -> HostsDemo:
    """Returns a demo with one host."""
    host = Host(cast("LineProcess", worker), cast("Admin", worker))
    table = DemoTable(Console(file=StringIO()))
    return HostsDemo({"A": host}, cast("LineProcess", worker), None, table)


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts, "WRITTEN_SECONDS", 0.05)


def test_pages_that_the_engine_refused_are_used_again() -> None:
    """A second use covers all whole pages, also if the sequence ends with one."""
    worker = WorkerOfOneUse(uses=2)
    demo_of(worker).warm_up([7] * (PAGES * PAGE_TOKENS))
    first, again = [each for each in worker.asked if each.get("use_store", True)][:2]
    assert first["prompt_ids"] == [7] * (PAGES * PAGE_TOKENS)
    assert again["prompt_ids"] == [7] * (PAGES * PAGE_TOKENS + 1)


def test_an_engine_that_refuses_pages_for_good_is_named() -> None:
    """The error says how many pages are missing and why."""
    with pytest.raises(WorkerError, match=r"has 1 pages of host A, not 3, .* refused: away 2$"):
        demo_of(WorkerOfOneUse(uses=99)).warm_up([7] * (PAGES * PAGE_TOKENS + 5))
