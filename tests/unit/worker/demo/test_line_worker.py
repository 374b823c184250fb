"""A worker answers each line of JSON with one line, whatever the line says."""

import io
import json
from collections.abc import Callable
from typing import Any

import pytest

from engines.engine_world import NOTHING, EngineWorld, Left, left_at
from inference_worker.demo.line_worker import LineWorker
from inference_worker.engine.engine import PAGE_TOKENS, Engine
from inference_worker.model.model import PagedModel

Ids = Callable[[int, int], list[int]]


def answers_of(worker: LineWorker, *lines: object) -> list[dict[str, Any]]:
    """Sends lines to a worker, text unchanged and the rest as JSON. Returns its answers."""
    text = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    answers = io.StringIO()
    worker.serve(io.StringIO("".join(f"{line}\n" for line in text)), answers)
    return [json.loads(line) for line in answers.getvalue().splitlines()]


@pytest.fixture
def engine(paged_models: dict[str, PagedModel]) -> Engine:
    """Returns an engine without a store."""
    return Engine(paged_models["qwen3"], None, longest=200)


@pytest.fixture
def alone(engine: Engine) -> LineWorker:
    """Returns a worker without a store."""
    return LineWorker(engine, None, None)


def test_a_generation_is_answered_whole(engine: Engine, alone: LineWorker, text_ids: Ids) -> None:
    """After the line of readiness, an answer has the engine's fields under the request's id."""
    ids = text_ids(40, 70)
    ready, answer = answers_of(
        alone, {"op": "generate", "id": "x", "prompt_ids": ids, "max_tokens": 6}
    )
    assert ready == {"ready": True}
    assert answer.pop("ttft_ms") > 0
    assert answer.pop("store_ms") == 0
    assert answer == {
        "id": "x",
        "output_ids": engine.generate(ids, 6).output_ids,
        "prompt_tokens": 40,
        "matched_tokens": 0,
        "disk_tokens": 0,
        "remote_tokens": 0,
        "copied_tokens": 0,
        "prefilled_tokens": 40,
        "computed_tokens": 45,
        "matched_pages": [],
        "source_page": None,
        "published_pages": [],
        "recycled_pages": 0,
        "preemptions": 0,
        "store_failure": None,
    }


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("no JSON", "JSONDecodeError"),
        (7, "TypeError"),
        ([], "TypeError"),
        ({"id": 3}, "ValueError"),
        ({"id": 3, "op": "dance"}, "ValueError"),
        ({"id": 3, "op": "keep_pin", "prompt_ids": [1]}, "ValueError"),
        ({"id": 3, "op": "generate", "max_tokens": 3}, "ValueError"),
        ({"id": 3, "op": "generate", "prompt_ids": [1], "max_tokens": "3"}, "TypeError"),
        (
            {
                "id": 3,
                "op": "generate",
                "prompt_ids": [1],
                "max_tokens": 1,
                "sampling": {"top_p": 0},
            },
            "ValueError",
        ),
        ({"id": 3, "op": "generate", "prompt_ids": [], "max_tokens": 3}, "BadPromptError"),
        ({"id": 3, "op": "generate", "prompt_ids": [256], "max_tokens": 3}, "BadPromptError"),
        ({"id": 3, "op": "generate", "prompt_ids": "ab", "max_tokens": 3}, "TypeError"),
        ({"id": 3, "op": "generate", "prompt_ids": [1], "max_tokens": 900}, "RequestTooLongError"),
    ],
)
def test_a_bad_line_is_answered_and_survived(alone: LineWorker, line: object, error: str) -> None:
    """The answer names the error, with the id if there is one, and the next line is served."""
    good = {"op": "generate", "id": 4, "prompt_ids": [1, 2, 3], "max_tokens": 2}
    _, bad, after = answers_of(alone, line, good)
    assert bad["error"].partition(":")[0] == error
    assert bad["id"] == (line.get("id") if isinstance(line, dict) else None)
    assert (after["id"], len(after["output_ids"])) == (4, 2)


@pytest.mark.parametrize("name", ["op", "prompt_ids", "max_tokens"])
def test_a_missing_field_is_named(alone: LineWorker, name: str) -> None:
    """The error names the missing field."""
    request = {"op": "generate", "prompt_ids": [1, 2], "max_tokens": 2}
    del request[name]
    _, answer = answers_of(alone, request)
    assert answer == {"id": None, "error": f"ValueError: the field '{name}' is missing"}


def test_without_a_store_there_is_nothing_to_flush(alone: LineWorker) -> None:
    """A flush without a store succeeds at once."""
    assert answers_of(alone, {"op": "flush", "id": 1})[1] == {"id": 1, "flushed": True}


def test_a_request_says_where_its_pages_are(world: EngineWorld, text_ids: Ids) -> None:
    """One request's published pages are the next one's matched pages, and both are valid JSON."""
    worker = LineWorker(world.engine, world.client, world.namespace)
    request = {"op": "generate", "prompt_ids": text_ids(70, 71), "max_tokens": 2}
    _, first, second, third = answers_of(worker, request, request, {**request, "use_store": False})
    assert len(first["published_pages"]) == 5
    assert [*second["matched_pages"], second["source_page"]] == first["published_pages"]
    assert all(len(page) == 2 for page in first["published_pages"])
    assert third["matched_pages"] == third["published_pages"] == []
    assert world.left() == NOTHING


def test_a_pin_is_kept_until_the_end(world: EngineWorld, text_ids: Ids) -> None:
    """A pin is held through any flush while lines come, and is released after the last line."""
    worker = LineWorker(world.engine, world.client, world.namespace)
    ids = text_ids(70, 72)
    meanwhile: list[Left] = []

    class Answers(io.StringIO):
        def write(self, text: str, /) -> int:
            if '"flushed"' in text:
                meanwhile.append(left_at(world.runtime_dir))
            return super().write(text)

    requests: list[dict[str, object]] = [
        {"op": "generate", "prompt_ids": ids, "max_tokens": 1},
        {"op": "keep_pin", "id": "kept", "prompt_ids": ids},
        {"op": "flush", "id": "flushed"},
    ]
    answers = Answers()
    worker.serve(io.StringIO("".join(json.dumps(each) + "\n" for each in requests)), answers)
    *_, kept, flushed = map(json.loads, answers.getvalue().splitlines())
    assert kept == {"id": "kept", "matched_tokens": 4 * PAGE_TOKENS}
    assert flushed == {"id": "flushed", "flushed": True}
    assert meanwhile == [Left(pins=1)]
    assert world.left() == NOTHING
