"""Lines of a serving process share a terminal or journal with those of its store."""

import re
import subprocess
import sys

SCRIPT = """
import logging
import structlog
from inference_worker.fleet.log import log_to_stderr
from kvstore.logs import configure_logging
log_to_stderr(logging.INFO)
configure_logging("console", "info")
for log in (structlog.get_logger(), logging.getLogger("inference_worker")):
    log.info("something_happened")
    log.warning("something_else")
log.debug("page_hidden")
try:
    raise ZeroDivisionError("why")
except ZeroDivisionError:
    log.exception("it_failed")
"""
HEAD = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z \[(\w+ *)\] ")


def test_lines_begin_as_those_of_the_store_do() -> None:
    """Lines begin with UTC time to the microsecond and the level, so both logs sort together."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        capture_output=True,
        text=True,
        check=True,
        env={"TZ": "Asia/Tokyo", "PYTHONPATH": ":".join(sys.path)},
    )
    store, worker = done.stderr.splitlines()[:2], done.stderr.splitlines()[2:]
    found = [HEAD.match(line) for line in (*store, *worker[:3])]
    assert all(found), done.stderr
    levels = [each[1] for each in found if each]
    assert levels[:2] == levels[2:4] == ["info     ", "warning  "]
    hours = {line[:13] for line in (*store, *worker[:3])}
    assert len(hours) <= 2, "no clock of its own"
    assert worker[0].endswith(" inference_worker: something_happened")
    assert worker[2].endswith(" inference_worker: it_failed")
    assert worker[-1] == "ZeroDivisionError: why"
    assert "page_hidden" not in done.stderr
