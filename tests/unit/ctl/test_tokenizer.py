"""Token ids as text that is safe for a terminal."""

import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from kvstore_ctl.terminal_text import printable
from kvstore_ctl.tokenizer import decoder_of

WORDS = {"hello": 0, "world": 1, "\x1b[31m": 2}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Provides a folder with a model's tokenizer."""
    Tokenizer(WordLevel(WORDS)).save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def test_a_model_s_tokenizer_decodes(folder: Path) -> None:
    """A tokenizer is named by its folder or its file. Control characters are shown, not sent."""
    for source in (folder, folder / "tokenizer.json"):
        assert decoder_of(str(source))([0, 1]) == "hello world"
    assert decoder_of(str(folder))([0, 2]) == "hello \\x1b[31m"


def test_bytes_are_a_tokenizer() -> None:
    """Ids above a byte are left out, and so are parts of characters."""
    assert decoder_of("bytes")([*"ä\n".encode(), 300, 0xC3]) == "ä\\n\ufffd"


def test_what_is_no_tokenizer_is_said(tmp_path: Path) -> None:
    """The error names a missing file, and a file of another kind."""
    with pytest.raises(ValueError, match="no file"):
        decoder_of(str(tmp_path))
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match=str(tmp_path)):
        decoder_of(str(tmp_path))


def test_without_the_package_it_says_how_to_have_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the package tokenizers if it is missing."""
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ValueError, match="pip install tokenizers"):
        decoder_of(str(folder))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain ä 漢 🙂", "plain ä 漢 🙂"),
        ("a\nb\tc\r", "a\\nb\\tc\\r"),
        ("\x1b]0;title\x07", "\\x1b]0;title\\x07"),
        ("\u202eevil\u2066", "\\u202eevil\\u2066"),
        ("\x9b31m\x7f", "\\x9b31m\\x7f"),
        ("\ud800", "\\ud800"),
    ],
)
def test_what_a_terminal_obeys_is_escaped(text: str, shown: str) -> None:
    """Control characters of both sets, and those that change the writing direction, are escaped."""
    assert printable(text) == shown
