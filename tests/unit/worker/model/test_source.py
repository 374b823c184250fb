"""A model is named by a word or by a path."""

from pathlib import Path

import pytest

from inference_worker.model.model import model_folder
from inference_worker.model.tiny import tiny_folder


@pytest.mark.parametrize(
    ("word", "name"), [("tiny", "qwen3"), ("tiny-qwen3", "qwen3"), ("tiny-llama", "llama")]
)
def test_a_word_names_a_tiny_model(word: str, name: str) -> None:
    """A word names the tiny model's folder in the cache."""
    assert model_folder(word) == tiny_folder(name)


def test_a_path_names_itself(tmp_path: Path) -> None:
    """Any folder is accepted, as a path or as text."""
    assert model_folder(tmp_path) == model_folder(str(tmp_path)) == tmp_path


def test_what_names_nothing_is_an_error(tmp_path: Path) -> None:
    """The error lists what can be named."""
    for source in ("tiny-gpt5", tmp_path / "missing"):
        with pytest.raises(FileNotFoundError, match="tiny-gemma3"):
            model_folder(source)
