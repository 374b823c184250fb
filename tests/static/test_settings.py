"""The metrics, events and reasons that the settings' descriptions name exist."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from kvstore.config.about import Symptoms, about
from kvstore.config.settings import Config
from kvstore.errors import KVStoreError

ROOT = Path(__file__).parents[2]
ABOUTS = [about(name, field) for name, field in Config.model_fields.items()]


@cache
def figures() -> frozenset[str]:
    """Returns the names of the fields of the contract, which GetStats answers with."""
    paths = sorted((ROOT / "proto" / "kvstore" / "v1").glob("*.proto"))
    text = "\n".join(path.read_text(encoding="utf-8") for path in paths)
    return frozenset(re.findall(r"^\s+[\w.]+(?: [\w.]+)? (\w+) = \d+;", text, re.MULTILINE))


@cache
def events() -> frozenset[str]:
    """Returns the words that the server's sources have as text, its log's events among them."""
    paths = [
        path
        for path in sorted((ROOT / "kvstore").rglob("*.py"))
        if not path.name.startswith("config")
    ]
    return frozenset(
        node.value
        for path in paths
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


@cache
def metrics() -> frozenset[str]:
    """Returns the names of the metrics, by the page that is written from their definitions."""
    page = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    return frozenset(re.findall(r"^\| `(kvstore_\w+)`", page, re.MULTILINE))


def missing(shown: Symptoms) -> set[str]:
    """Returns the names by which nothing is found."""
    reasons = {each.reason() for each in KVStoreError.__subclasses__()}
    return (
        (set(shown.stats.split()) - figures())
        | (set(shown.log.split()) - events())
        | (set(shown.errors.split()) - reasons)
        | (set(shown.metrics.split()) - metrics())
    )


def test_what_shows_that_a_setting_is_wrong_is_there() -> None:
    """Each setting names something to look at, and all of it exists."""
    assert [each.name for each in ABOUTS if not each.shown.text()] == []
    assert {each.name: wrong for each in ABOUTS if (wrong := missing(each.shown))} == {}


@pytest.mark.parametrize(
    "shown",
    [
        Symptoms(stats="page_counts"),
        Symptoms(log="lease_expires"),
        Symptoms(errors="BAD_FIELD"),
        Symptoms(metrics="kvstore_pages"),
    ],
)
def test_a_name_that_is_not_there_is_seen(shown: Symptoms) -> None:
    """A figure, an event, a reason and a metric that nobody gives are found."""
    assert missing(shown)


def test_every_setting_says_what_it_may_be() -> None:
    """Each has values that are allowed, and says where to start."""
    assert [each.name for each in ABOUTS if not each.values.allowed] == []
    assert [each.name for each in ABOUTS if "Start with: " not in each.description] == []
