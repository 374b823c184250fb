"""The reference is stock transformers in a process without the store."""

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

from inference_worker.demo.reference import Reference
from inference_worker.model.tiny import build_qwen3, tiny_folder

Ids = Callable[[int, int], list[int]]


@pytest.fixture(scope="module")
def reference() -> Reference:
    """Returns a reference in this process."""
    return Reference(build_qwen3())


def greedy(reference: Reference, ids: list[int], output: list[int]) -> list[float]:
    """Checks that each id is the plain forward's best one, and returns its gaps."""
    whole = torch.tensor([ids + output])
    with torch.inference_mode():
        logits = reference._module(input_ids=whole).logits[0, len(ids) - 1 : -1]
    assert logits.argmax(-1).tolist() == output
    best = logits.topk(2).values
    gaps: list[float] = (best[:, 0] - best[:, 1]).tolist()
    return gaps


def test_outputs_and_gaps_are_the_plain_forwards(reference: Reference, text_ids: Ids) -> None:
    """The reference returns as many ids as requested, each the best one, each with its gap."""
    ids = text_ids(50, 30)
    answer = reference.answer(ids, 12)
    assert len(answer["output_ids"]) == 12
    assert answer["gaps"] == pytest.approx(greedy(reference, ids, answer["output_ids"]), abs=1e-3)
    assert answer["ttft_ms"] > 0


def test_ids_equal_to_a_padding_are_tokens(reference: Reference) -> None:
    """Zeros at the start of a prompt are attended to like any token."""
    ids = [0, 0, 0, 5, 6, 7]
    greedy(reference, ids, reference.answer(ids, 8)["output_ids"])


def test_it_goes_on_from_forced_ids(reference: Reference, text_ids: Ids) -> None:
    """Forced ids come first, with their actual gaps, and the rest follows from them."""
    ids = text_ids(40, 31)
    free = reference.answer(ids, 8)
    other = [*free["output_ids"][:3], (free["output_ids"][3] + 1) % 256]
    forced = reference.answer(ids, 8, other)
    assert forced["output_ids"][:4] == other
    assert forced["gaps"][:4] == free["gaps"][:4]
    greedy(reference, ids + other, forced["output_ids"][4:])


@pytest.mark.parametrize(
    ("prompt", "tokens", "forced"), [([], 4, []), ([1], 0, []), ([1], 1, [2, 3])]
)
def test_requests_without_sense_are_refused(
    reference: Reference, prompt: list[int], tokens: int, forced: list[int]
) -> None:
    """An empty prompt, 0 tokens, or more forced ids than tokens raise."""
    with pytest.raises(ValueError, match="tokens"):
        reference.answer(prompt, tokens, forced)


def test_its_process_answers_lines_and_knows_no_store(reference: Reference, text_ids: Ids) -> None:
    """The process is ready, answers each line, survives bad ones and imports no client."""
    ids = text_ids(30, 32)
    program = (
        "import json, sys; from inference_worker.demo.reference import main; main();"
        "clients = ('kvstore.', 'kvstore_client');"
        "print(json.dumps([m for m in sys.modules if m.startswith(clients)]))"
    )
    requests: list[Any] = [
        {"id": "a", "prompt_ids": ids, "max_tokens": 5},
        {"id": "b", "prompt_ids": [], "max_tokens": 5},
        {"id": "c", "prompt_ids": ids, "max_tokens": 5, "forced_ids": [1, 2]},
        7,
    ]
    done = subprocess.run(
        [sys.executable, "-c", program, "--threads", "1", "--model", str(tiny_folder("qwen3"))],
        input="".join(json.dumps(request) + "\n" for request in requests) + "no JSON\n",
        capture_output=True,
        text=True,
        check=True,
    )
    ready, a, b, c, seven, junk, imported = map(json.loads, done.stdout.splitlines())
    assert ready == {"ready": True}
    expected = reference.answer(ids, 5)
    assert (a["id"], a["output_ids"]) == ("a", expected["output_ids"])
    assert a["gaps"] == pytest.approx(expected["gaps"], abs=1e-3)
    assert (b["id"], b["error"][:10]) == ("b", "ValueError")
    assert c["output_ids"][:2] == [1, 2]
    assert "error" in seven
    assert "error" in junk
    assert imported == []
