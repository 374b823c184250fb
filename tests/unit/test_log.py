"""Logging, tested in a process of its own, because it is configured once per process."""

import json
import os
import subprocess
import sys

SCRIPT = """
import logging, sys, structlog
from kvstore.logs import configure_logging
from kvstore.logs import CALL
configure_logging(sys.argv[1], "info")
log = structlog.get_logger()
log.debug("page_hidden")
class Call:
    def facts(self):
        return {"request_id": "id-1"}
CALL.set(Call())
log.info("lease_granted", lease_id="0f")
CALL.set(None)
try:
    tokens = "local" + " variable"
    raise ZeroDivisionError("why")
except ZeroDivisionError:
    log.exception("request_failed")
"""


RELOAD = """
from kvstore.logs import change_logging, configure_logging
from kvstore.core import Identity, Limits, PrefixCache
from kvstore.rpc.pipeline import Call, Method, Pipeline
from kvstore.service.clock import MONOTONIC
from kvstore.service.store import KVStore
from kvstore.storage.arenas import Arenas
from kvstore.storage.host.host_memory import HostMemory
from kvstore.v1.store_pb2 import GetStatsResponse
class Incoming:
    call = Call(Identity("alice"), remaining=1.0)
    body = b""
    remaining = 1.0
configure_logging("json", "info")
arenas = Arenas(budget_bytes=64, extent_bytes=64, source=HostMemory())
pipeline = Pipeline(KVStore(PrefixCache(1, Limits()), arenas=arenas, clock=MONOTONIC), MONOTONIC)
for level in ("info", "debug", "warning"):
    change_logging("json", level)
    serve = lambda request, call: GetStatsResponse()
    method = Method("/a/" + level, serve, bytes, "max_message_bytes", 9, 9.0, False, False)
    pipeline.answer(method, "id", Incoming())
"""


def logged(log_format: str) -> str:
    """Returns what a process logs on stderr. Its stdout must be empty."""
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT, log_format], capture_output=True, text=True, check=True
    )
    assert result.stdout == ""
    return result.stderr


def test_json_lines_have_event_context_and_traceback() -> None:
    """Each JSON line has its event, level, time and the call's fields."""
    granted, failed = (json.loads(line) for line in logged("json").splitlines())
    assert granted.pop("timestamp")
    assert granted == {
        "event": "lease_granted",
        "level": "info",
        "lease_id": "0f",
        "request_id": "id-1",
    }
    assert failed["exception"].splitlines()[-1] == "ZeroDivisionError: why"


def test_tracebacks_hold_no_local_variables() -> None:
    """The values of local variables stay out of the log in both formats."""
    for log_format in ("json", "console"):
        text = logged(log_format)
        assert "ZeroDivisionError: why" in text
        assert "local variable" not in text


def test_console_lines_are_plain_where_nobody_looks() -> None:
    """Without a terminal lines have no colours, and debug lines are left out at level info."""
    text = logged("console")
    assert "\x1b[" not in text
    assert "page_hidden" not in text
    assert "lease_granted" in text


def test_a_log_that_nobody_reads_any_more_stops_nothing() -> None:
    """A process goes on if its log cannot be written."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as unread:
        command = [sys.executable, "-c", SCRIPT + "print('went on')", "json"]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=unread, check=False)
    assert done.stdout == b"went on\n"


def test_calls_are_logged_from_when_the_level_says_so() -> None:
    """Calls are logged at debug as soon as the level changes to debug."""
    result = subprocess.run(
        [sys.executable, "-c", RELOAD], capture_output=True, text=True, check=True
    )
    lines = [json.loads(line) for line in result.stderr.splitlines()]
    assert [(each["event"], each["method"]) for each in lines] == [("request_handled", "/a/debug")]
