"""The environment's switch for tracing calls, and the remaining cost while it is off."""

import pytest

from kvstore import tracing


@pytest.mark.parametrize(
    ("environment", "wanted"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, False),
        ({"OTEL_SERVICE_NAME": "x"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://a:4317"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://a:4317"}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://a:4317", "OTEL_SDK_DISABLED": "TRUE"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://a:4317", "OTEL_TRACES_EXPORTER": "none"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://a:4317", "OTEL_TRACES_EXPORTER": "otlp"}, True),
    ],
)
def test_the_environment_says_whether_it_is_wanted(
    environment: dict[str, str],
    wanted: bool,  # noqa: FBT001 - a case
) -> None:
    """Tracing is on if the environment names a collector and does not switch it off."""
    assert tracing.is_wanted(environment) == wanted


def test_what_is_called_without_a_collector_does_nothing() -> None:
    """Without a collector all calls of tracing do nothing."""
    assert not tracing.ON
    assert tracing.begin("request", prompt_tokens=1) is None
    assert tracing.traceparent() == ""
    with (
        tracing.exported("test", "0"),
        tracing.span("lookup", None) as span,
        tracing.call_span("MatchPrefix", "00-1-2-01") as call,
        tracing.inside(None),
    ):
        assert (span, call) == (None, None)
