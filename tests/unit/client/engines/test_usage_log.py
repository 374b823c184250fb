"""Log lines about the use of a store."""

import logging
from collections import Counter

import pytest

from kvstore_client.engines.counters import take_counts
from kvstore_client.engines.usage_log import UsageLog


def test_each_change_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """The line has the facts as they are then; the counts have the latest state alone."""
    caplog.set_level(logging.INFO, "kvstore_client")
    counts: Counter[str] = Counter()
    reasons = iter(["", "absent", ""])
    usage = UsageLog(lambda: {"reason": next(reasons)}, counts)
    for usable in (True, True, False, False, True):
        usage.note(usable=usable)
    found = [(each.levelname, each.getMessage(), vars(each)["reason"]) for each in caplog.records]
    assert found == [
        ("INFO", "kvstore_used", ""),
        ("WARNING", "kvstore_not_used", "absent"),
        ("INFO", "kvstore_used", ""),
    ]
    assert take_counts(counts) == {"attached": 1}
    assert not counts
