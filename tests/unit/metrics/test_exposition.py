"""The text of a registry, written at most once a second."""

import pytest
from prometheus_client import CollectorRegistry, Counter

from kvstore.metrics.exposition import Exposition, process_registry

OPENMETRICS = "application/openmetrics-text; version=1.0.0"


def test_a_text_is_kept_for_a_second() -> None:
    """Each format for itself."""
    now, registry = 5.0, CollectorRegistry()
    counter = Counter("looks", "Looks.", registry=registry)
    show = Exposition(registry, lambda: now)
    first = show("")
    assert b"looks_total 0.0\n" in first.body
    counter.inc()
    assert show("") is first
    other = show(OPENMETRICS)
    assert b"looks_total 1.0\n" in other.body
    assert other.body.endswith(b"# EOF\n")
    assert other.content_type.startswith("application/openmetrics-text")
    now = 6.0
    assert b"looks_total 1.0\n" in show("").body


def test_it_has_what_the_process_takes() -> None:
    """Beside what is registered later."""
    text = Exposition(process_registry(), lambda: 0.0)("").body
    assert b"process_resident_memory_bytes" in text
    assert b"python_info" in text


@pytest.mark.parametrize(
    "accept",
    [
        "application/openmetrics-text; version=one",
        "text/plain; version=one",
        "application/openmetrics-text; version=1.0.1",
        "application/openmetrics-text; version=1.0.0²; escaping=x",
        "application/openmetrics-text; version=0.0.1",
        "application/openmetrics-text;;",
        "\xff,,;=",
    ],
)
def test_whatever_a_client_accepts_there_are_two_texts(accept: str) -> None:
    """Neither its version nor what else it says has a third one written, nor fails."""
    registry = CollectorRegistry()
    show = Exposition(registry, lambda: 5.0)
    plain = show("")
    openmetrics = show(OPENMETRICS)
    again = show(accept)
    assert again is plain or again is openmetrics
