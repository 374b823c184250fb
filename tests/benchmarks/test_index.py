"""benchmarks/index.py with minimal work and without a peer, so its figures mean nothing."""

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "index.py"


def test_the_last_line_is_one_json_object(tmp_path: Path) -> None:
    """The last line is JSON with each case, the peers that lack it, memory, pauses and traces."""
    trace = tmp_path / "trace.jsonl.gz"
    requests = [
        {"input_length": 1_100, "hash_ids": [0, 1, 2]},
        {"input_length": 1_500, "hash_ids": [0, 1, 3]},
    ]
    with gzip.open(trace, "wt", encoding="utf-8") as lines:
        lines.writelines(json.dumps(each) + "\n" for each in requests)
    command = [sys.executable, str(SCRIPT), "--json", "--tiny"]
    command += ["--trace", str(trace), "--passes", "2", "--requests", "10"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stderr
    document = json.loads(result.stdout.splitlines()[-1])
    names = [each["name"] for each in document["cases"]]
    assert names == [
        *("match_100k_1_node", "match_100k_196_nodes", "match_100k_1563_nodes"),
        *("insert_512", "evict_1k_leaves", "bytes_per_page_4", "bytes_per_page_32"),
    ]
    assert all(each["kvstore_us"] > 0 for each in document["cases"])
    assert set(document["cases"][0]["peers"]) == {"vllm_style_hash"}
    assert set(document["cases"][3]["missing"]) == {"sglang_python", "sglang_rust"}
    assert document["bytes_per_page_4"] > document["bytes_per_page_32"] > 0
    assert set(document["collector"]) == {"default", "ours"}
    assert all(each["raw_us"]["kvstore"] for each in document["cases"][:5])
    replay = document["trace"]
    first, second = replay["passes"]
    assert (first["pages"], first["nodes"]) == (second["pages"], second["nodes"]) == (97, 3)
    assert replay["last_over_first"] > 0
    assert replay["last_over_first_by_control"] > 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "No such file or directory"),
        ("", "no request has tokens"),
        ('{"hash_ids": [], "input_length": 0}\n', "no request has tokens"),
    ],
    ids=range(3),
)
def test_a_trace_that_nothing_can_be_made_of_is_a_line(
    tmp_path: Path, text: str | None, said: str
) -> None:
    """An unusable trace is reported in one line before anything is measured."""
    trace = tmp_path / "trace.jsonl"
    if text is not None:
        trace.write_text(text)
    command = [sys.executable, str(SCRIPT), "--tiny", "--trace", str(trace)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == f"{trace}: {said}\n"
