"""Events of the connector among an engine's log lines."""

import io
import logging
from collections.abc import Iterator

import pytest

from engines.connector_logs import forget_connector_logs
from kvstore_client.engines.log import log_with


@pytest.fixture
def engine() -> Iterator[tuple[logging.Logger, io.StringIO]]:
    """An engine's logger with a format of its own, and its output."""
    written = io.StringIO()
    logger = logging.getLogger("an engine of a test")
    handler = logging.StreamHandler(written)
    handler.setFormatter(logging.Formatter("%(levelname)s [engine] %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield logger, written
    logger.removeHandler(handler)
    forget_connector_logs("kvstore_vllm")


def test_events_are_written_with_their_fields_once(
    engine: tuple[logging.Logger, io.StringIO],
) -> None:
    """Events use the engine's format and level, and are written once even if it is set up twice."""
    logger, written = engine
    for _ in range(2):
        log_with(logger, "kvstore_vllm")
    ours = logging.getLogger("kvstore_vllm.scheduler.scheduler_role")
    ours.info("kvstore_used", extra={"runtime_dir": "/run/kvstore", "namespace": "50 %s"})
    ours.debug("not told")
    logging.getLogger("kvstore_client.lifecycle.session").warning("attach_refused")
    assert written.getvalue() == (
        "INFO [engine] kvstore_used runtime_dir=/run/kvstore namespace=50 %s\n"
        "WARNING [engine] attach_refused\n"
    )


def test_other_handlers_see_an_event_as_it_was_logged(
    engine: tuple[logging.Logger, io.StringIO], caplog: pytest.LogCaptureFixture
) -> None:
    """An event's fields are added to the engine's line alone."""
    logger, written = engine
    log_with(logger, "kvstore_vllm")
    ours = logging.getLogger("kvstore_vllm")
    ours.addHandler(caplog.handler)
    ours.warning("attach_refused", extra={"reason": "busy"})
    assert "attach_refused reason=busy" in written.getvalue()
    assert [record.getMessage() for record in caplog.records] == ["attach_refused"]


def test_an_engine_without_handlers_changes_nothing() -> None:
    """Python's own rules apply if the engine has no handlers."""
    log_with(logging.getLogger("an engine that logs nothing"), "kvstore_vllm")
    ours = logging.getLogger("kvstore_vllm")
    assert (ours.handlers, ours.propagate) == ([], True)
