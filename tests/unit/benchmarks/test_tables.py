"""Tables of benchmarks, in a terminal of 80 columns and in a file."""

import io
from collections.abc import Iterable
from typing import Any

import determinism
import pytest
from rich.console import Console
from rich.table import Table

from support.fetch import tables as fetch_tables
from support.rpc import tables as rpc_tables
from support.table_console import TABLE_WIDTH, table_console
from support.workloads import tables as workload_tables

SERVERS = ["grpc.server", "grpc.aio", "hot lane"]
OPERATIONS = ("match", "acquire", "release")
# The largest times of any table on a machine that is fast enough for measurements.
P50, P99 = 23_456.0, 123_456.0


def printed(tables: Iterable[Table]) -> str:
    """Returns the output of some tables in 80 columns."""
    console = Console(file=io.StringIO(), width=80)
    for each in tables:
        console.print(each)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def cell(server: str, tokens: int, callers: int) -> dict[str, Any]:
    """Returns the figures of one server by rpc.py."""
    return {
        "server": server,
        "tokens": tokens,
        "callers": callers,
        "calls_per_second": P50,
        "server_cpu_us_per_call": P99,
        "operations": {name: {"p50_us": P50, "p99_us": P99} for name in OPERATIONS},
    }


@pytest.mark.parametrize("callers", [1, 4])
def test_the_times_of_calls_can_be_read(callers: int) -> None:
    """The tables have each server's times, the ratios, and with one caller the store's own time."""
    local = ["store alone", "in process"] if callers == 1 else []
    document = {
        "servers": SERVERS,
        "cells": [cell(server, 100_000, callers) for server in [*SERVERS, *local]],
        "ratios": [
            {
                "tokens": 100_000,
                "callers": callers,
                "operations": {name: {"p50": 12.34, "p99": 56.78} for name in OPERATIONS},
            }
        ],
    }
    text = printed(rpc_tables.tables(document))
    assert "…" not in text
    times = len(OPERATIONS) * len([*SERVERS, *local])
    assert (text.count(" 23,456"), text.count(" 123,456")) == (times + 3, times + 3)
    assert (text.count("12.34"), text.count("56.78")) == (len(OPERATIONS), len(OPERATIONS))
    for heading in ("threads", "aio", "lane", "100,000", *OPERATIONS):
        assert heading in text


def test_hits_fetches_and_stores_can_be_read() -> None:
    """Long names are broken between words, and figures stay whole."""
    name = "kvstore, copied in by layer, no checksums, 2 threads"
    measured = {"name": name, "tokens": 100_000, "whole_ms": 12345.678, "lookup_ms": 2345.678}
    document = {
        "references": dict.fromkeys(fetch_tables.TITLES, "kvstore, hot lane"),
        "cells": [
            {"part": part, "gb_s": 123.4, "ratio": 1696.33, **measured}
            for part in fetch_tables.TITLES
        ],
    }
    text = printed(fetch_tables.tables(document))
    assert "…" not in text
    found = [text.count(each) for each in ("12345.678", " 2345.678", "123.4", "1696.33")]
    assert found == [3, 2, 2, 3]


def test_workloads_can_be_read() -> None:
    """Each figure is a row, and each variant is a column."""
    figures = {
        "ttft_p50_ms": 27_627.1,
        "ttft_p99_ms": 114_915.2,
        "could_hit_ttft_p50_ms": 27_819.3,
        "could_hit_ttft_p99_ms": None,
        "requests_per_s": 123.45,
        "prefilled_tokens": 1_132_768,
        "matched_tokens": 2_000_000,
        "copied_tokens": 15,
        "store_p50_ms": 1_234.56,
    }
    head = {
        **dict.fromkeys(("speedup", "ideal_speedup", "hit_rate"), 1.0),
        **dict.fromkeys(("full_hits", "partial_hits", "could_hit"), 1),
        "identical": True,
        "baseline_vs_stock": 1.0,
    }
    variants = ("without", "store", "two workers", "ideal")
    document = {
        "workloads": {
            "chat": {
                "variants": dict.fromkeys(variants, figures),
                "target": {"speedup": 10, "hit_rate": 0.98},
            }
        },
        "summary": {"chat": head},
    }
    text = printed(workload_tables.tables(document))
    assert "…" not in text
    for each in (
        "27,627.1",
        "114,915.2",
        "27,819.3",
        "123.45",
        "1,132,768",
        "2,000,015",
        "1234.56",
    ):
        assert text.count(each) == len(variants), each
    for heading in (*variants, *workload_tables.FIGURES):
        assert heading in text


def test_how_far_bits_differ_can_be_read() -> None:
    """The headings of determinism.py are whole too."""
    ways = {f"behind a hit of all but {count} tokens": count for count in (30, 300)}
    plain = {
        "positions": 123_456,
        "positions_with_other_bits": 112_345,
        "largest_difference": 1.2e-05,
        "changed_tokens": 1_234,
    }
    found = {
        "model": "made up",
        "logits": {kind: dict.fromkeys(ways, plain) for kind in ("plain", "deterministic")},
    }
    text = printed([determinism.logit_table(found["logits"])])
    assert "…" not in text
    for each in ("123456", "112345", "1.2e-05", "1234 "):
        assert each in text


def test_a_file_has_lines_as_long_as_the_tables(capsys: pytest.CaptureFixture[str]) -> None:
    """A table in a file has its full width, because readers can scroll."""
    long = " ".join(["figure"] * 25)
    table_console().print(Table(long))
    assert long in capsys.readouterr().out
    assert table_console(stderr=True).width == TABLE_WIDTH
