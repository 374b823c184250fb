"""The text of a registry, for which the store is asked at most once a second."""

from collections.abc import Iterator
from threading import Event, Thread

import pytest
from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from kvstore import background
from kvstore.background import LOOK_EVERY
from kvstore.metrics.exposition import Exposition, process_registry
from kvstore.metrics.http_server import Response

OPENMETRICS = "application/openmetrics-text; version=1.0.0"
LIMIT = 30.0


class Slow(Collector):
    """A collector that waits, and that fails as long as ``failing`` is set."""

    def __init__(self) -> None:
        self.asked, self.going = Event(), Event()
        self.failing = False
        self.count = 0

    def describe(self) -> list[Metric]:
        """Returns nothing, so that the registry does not collect at once."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yields a metric once it may."""
        self.count += 1
        self.asked.set()
        assert self.going.wait(LIMIT)
        if self.failing:
            raise LookupError
        yield GaugeMetricFamily("slow", "Slow.", value=self.count)


def test_values_are_kept_for_a_second() -> None:
    """Both formats have the same values."""
    now, registry = 5.0, CollectorRegistry()
    counter = Counter("looks", "Looks.", registry=registry)
    show = Exposition(registry, lambda: now)
    first = show("")
    assert b"looks_total 0.0\n" in first.body
    counter.inc()
    now = 5.9
    assert show("") is first
    other = show(OPENMETRICS)
    assert b"looks_total 0.0\n" in other.body
    assert other.body.endswith(b"# EOF\n")
    assert other.content_type.startswith("application/openmetrics-text")
    now = 6.0
    assert b"looks_total 1.0\n" in show("").body
    assert b"looks_total 1.0\n" in show(OPENMETRICS).body


def test_who_asks_while_values_are_collected_gets_those() -> None:
    """They wait, and the store is not asked again."""
    registry, slow = CollectorRegistry(), Slow()
    registry.register(slow)
    show = Exposition(registry, lambda: 1.0)
    found: list[Response] = []
    threads = [Thread(target=lambda: found.append(show(""))) for _ in range(3)]
    for each in threads:
        each.start()
    assert slow.asked.wait(LIMIT)
    slow.going.set()
    for each in threads:
        each.join(LIMIT)
    assert slow.count == 1
    assert len(found) == len(threads)
    assert all(each is found[0] for each in found)


@pytest.mark.parametrize("accept", ["", OPENMETRICS])
def test_a_long_metric_gives_way(accept: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls get in between while one metric with many samples is written."""
    registry = CollectorRegistry()
    counter = Counter("looks", "Looks.", ["at"], registry=registry)
    for number in range(4 * LOOK_EVERY):
        counter.labels(str(number)).inc()
    rests: list[int] = []
    monkeypatch.setattr(background, "give_way", lambda: rests.append(1))
    text = Exposition(registry, lambda: 1.0)(accept).body
    assert text.count(b"looks_total{") == 4 * LOOK_EVERY
    assert len(rests) > 4


def test_a_failure_is_tried_again() -> None:
    """No values are kept of it."""
    registry, slow = CollectorRegistry(), Slow()
    registry.register(slow)
    slow.going.set()
    slow.failing = True
    show = Exposition(registry, lambda: 1.0)
    with pytest.raises(LookupError):
        show("")
    slow.failing = False
    assert b"slow 2.0\n" in show("").body


def test_it_has_the_figures_of_the_process() -> None:
    """They stand beside what is registered later."""
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
def test_there_are_two_texts_whatever_a_client_accepts(accept: str) -> None:
    """No version that a client names has a third one rendered, or fails."""
    registry = CollectorRegistry()
    show = Exposition(registry, lambda: 5.0)
    plain = show("")
    openmetrics = show(OPENMETRICS)
    again = show(accept)
    assert again is plain or again is openmetrics
