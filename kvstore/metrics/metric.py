"""A metric of the server, as Prometheus and operators know it."""

from enum import Enum
from typing import NamedTuple

from kvstore.metrics.scrape import Series


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
    meaning: str
    wrong: str
    series: Series


def counter(name: str, meaning: str, wrong: str, series: Series) -> Metric:
    """Returns a metric that only grows."""
    return Metric(Kind.COUNTER, name, meaning, wrong, series)


def gauge(name: str, meaning: str, wrong: str, series: Series) -> Metric:
    """Returns a metric that goes up and down."""
    return Metric(Kind.GAUGE, name, meaning, wrong, series)


def histogram(name: str, meaning: str, wrong: str, series: Series) -> Metric:
    """Returns a metric of durations in seconds, by buckets."""
    return Metric(Kind.HISTOGRAM, name, meaning, wrong, series)
