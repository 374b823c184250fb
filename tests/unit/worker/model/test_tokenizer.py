"""A folder's own tokenizer is used, and bytes if it has none."""

from pathlib import Path

import pytest
from transformers import GemmaTokenizer

from inference_worker.model.tokenizer import (
    ByteTokenizer,
    FolderTokenizer,
    Tokenizer,
    load_tokenizer,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder with a small tokenizer that begins each sequence with an id of its own."""
    words = ["<pad>", "<eos>", "<bos>", "<unk>", "a", "b", "\u2581", "ab"]
    vocab = {word: index for index, word in enumerate(words)}
    tokenizer = GemmaTokenizer(vocab=vocab, merges=[("a", "b")], add_bos_token=True)
    folder = tmp_path_factory.mktemp("words")
    tokenizer.save_pretrained(folder)
    return folder


def test_the_folders_tokenizer_is_loaded(folder: Path) -> None:
    """The folder's merges are applied, and its first id is separate from the text's ids."""
    tokenizer: Tokenizer = load_tokenizer(folder)
    assert isinstance(tokenizer, FolderTokenizer)
    assert tokenizer.encode("ab a") == [7, 6, 4]
    assert tokenizer.begin_ids == [2]
    assert tokenizer.decode([2, 7, 6, 4]) == "ab a"


def test_a_folder_without_one_has_bytes(tmp_path: Path) -> None:
    """The tokens of a folder without a tokenizer are bytes."""
    assert isinstance(load_tokenizer(tmp_path), ByteTokenizer)


def test_special_ids_have_names(folder: Path) -> None:
    """A token is found by its name, and an unknown name gives none."""
    tokenizer = load_tokenizer(folder)
    assert tokenizer.special_id("<bos>") == 2
    assert tokenizer.special_id("<unk>") == 3
    assert tokenizer.special_id("<start_of_turn>") is None
    assert load_tokenizer(folder.parent).special_id("<bos>") is None


def test_a_template_is_applied_where_there_is_one(folder: Path, tmp_path: Path) -> None:
    """Without a template the result is None; with one its ids end before the answer."""
    asked = [{"role": "user", "content": "ab"}]
    assert load_tokenizer(folder).render_chat(asked) is None
    tokenizer = GemmaTokenizer.from_pretrained(folder)
    tokenizer.chat_template = (
        "{% for each in messages %}b{{ each.content }}{% endfor %}"
        "{% if add_generation_prompt %}a{% endif %}"
    )
    tokenizer.chat_template += "{% if messages|length > 1 %}{{ raise_exception('one') }}{% endif %}"
    tokenizer.save_pretrained(tmp_path)
    assert load_tokenizer(tmp_path).render_chat(asked) == [5, 7, 4]
    with pytest.raises(ValueError, match="the chat template: one"):
        load_tokenizer(tmp_path).render_chat(asked * 2)
