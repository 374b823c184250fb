"""A metric's definition, and the sheet for the values of all metrics."""

from enum import Enum
from typing import NamedTuple, TypeAlias

from kvstore.service.timing import DurationCounts

Labels: TypeAlias = tuple[str, ...]


class Kind(Enum):
    """Type of a metric in Prometheus."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Metric(NamedTuple):
    """One metric. ``wrong`` says which values show a problem, and what to do then.

    A counter's ``name`` ends with ``_total``.
    """

    kind: Kind
    name: str
    labels: Labels
    meaning: str
    wrong: str


def counter(name: str, labels: str, meaning: str, wrong: str) -> Metric:
    """Returns a metric that only grows; ``labels`` are separated by spaces."""
    return Metric(Kind.COUNTER, name, tuple(labels.split()), meaning, wrong)


def gauge(name: str, labels: str, meaning: str, wrong: str) -> Metric:
    """Returns a metric that goes up and down."""
    return Metric(Kind.GAUGE, name, tuple(labels.split()), meaning, wrong)


def histogram(name: str, labels: str, meaning: str, wrong: str) -> Metric:
    """Returns a metric of durations in seconds, by buckets."""
    return Metric(Kind.HISTOGRAM, name, tuple(labels.split()), meaning, wrong)


class Sheet:
    """The values of one moment, by metric and labels. Values added twice are summed."""

    def __init__(self) -> None:
        self.values: dict[Metric, dict[Labels, float]] = {}
        self.durations: dict[Metric, dict[Labels, DurationCounts]] = {}

    def add(self, metric: Metric, value: float, *labels: str) -> None:
        """Adds to a counter or a gauge; ``labels`` are as many as the metric has."""
        assert len(labels) == len(metric.labels), metric.name
        line = self.values.setdefault(metric, {})
        line[labels] = line.get(labels, 0) + value

    def top(self, metric: Metric, value: float, *labels: str) -> None:
        """Sets a gauge to the largest of its values so far."""
        line = self.values.setdefault(metric, {})
        line[labels] = max(line.get(labels, value), value)

    def add_durations(self, metric: Metric, counts: DurationCounts, *labels: str) -> None:
        """Adds to a histogram."""
        line = self.durations.setdefault(metric, {})
        line[labels] = line.get(labels, DurationCounts()).plus(counts)
