"""The client's examples do what they say."""

import subprocess
import sys
from pathlib import Path

import pytest

from kvstore_client.testing import running_store

# Where an example is run that loads a model.
WITH_MODELS = Path(__file__).parents[1] / "e2e" / "test_commands.py"
EXAMPLES = Path(__file__).parents[2] / "clients" / "python" / "examples"


def run(example: str, *arguments: Path) -> list[str]:
    """Runs an example and returns the lines that it printed."""
    command = [sys.executable, str(EXAMPLES / example), *map(str, arguments)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


def test_a_prefix_is_shared() -> None:
    """The second client matches what the first one inserted, also in a second run."""
    with running_store() as store:
        for cached, published in ((0, 6), (96, 0)):
            lines = run("share_a_prefix.py", store.runtime_dir)
            assert lines[0] == f"first: {cached} of 100 tokens are cached"
            assert lines[1] == f"first: published {published} pages"
            assert lines[-2] == "second: 96 of 100 tokens are cached"
            assert lines[-1] == "second: the pages hold b'**'..."


def test_a_worker_does_without_a_store(tmp_path: Path) -> None:
    """Without a store every request is answered from private memory, with the reason."""
    lines = run("without_a_store.py", tmp_path)
    assert lines[0::2] == [
        f"request {n}: 0 tokens cached, the rest goes to private memory" for n in range(3)
    ]
    assert all(line.startswith("  for StoreUnavailable: ") for line in lines[1::2])


def test_the_same_worker_uses_a_store_that_is_there() -> None:
    """With a store each request reuses the earlier ones, and a second run all whole pages."""
    with running_store() as store:
        for counts in ((0, 32, 32), (48, 48, 48)):
            lines = run("without_a_store.py", store.runtime_dir)
            assert lines == [
                f"request {n}: {cached} tokens cached, the rest goes to the store"
                for n, cached in enumerate(counts)
            ]


def test_without_a_folder_they_look_where_a_client_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """An example without arguments uses the store of the environment's folder."""
    with running_store() as store:
        monkeypatch.setenv("KVSTORE_RUNTIME_DIR", str(store.runtime_dir))
        assert run("share_a_prefix.py")[0] == "first: 0 of 100 tokens are cached"
        assert run("without_a_store.py")[0].endswith("goes to the store")


def test_every_example_is_run() -> None:
    """Every example has a test."""
    here = Path(__file__).read_text(encoding="utf-8")
    there = WITH_MODELS.read_text(encoding="utf-8")
    assert [
        example.name
        for example in EXAMPLES.glob("*.py")
        if f'"{example.name}"' not in here and f'"{example.stem}"' not in there
    ] == []
