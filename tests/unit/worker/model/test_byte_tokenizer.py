"""The byte tokenizer's tokens are a text's UTF-8 bytes."""

import pytest

from inference_worker.model.tokenizer import ByteTokenizer


@pytest.mark.parametrize("text", ["", "plain", "\u00e4\u4f60\U0001f642\n\x00"])
def test_text_comes_back(text: str) -> None:
    """Decoding gives the encoded text, and each byte is one token."""
    tokenizer = ByteTokenizer()
    ids = tokenizer.encode(text)
    assert ids == list(text.encode())
    assert tokenizer.decode(ids) == text


def test_pieces_join() -> None:
    """A text's ids are its pieces' ids in order, without a first id."""
    tokenizer = ByteTokenizer()
    assert tokenizer.encode("ab") + tokenizer.encode("c") == tokenizer.encode("abc")
    assert tokenizer.begin_ids == []


def test_any_ids_decode() -> None:
    """Ids that are no byte, or no UTF-8 together, do not raise."""
    assert ByteTokenizer().decode([65, 255, 300, 66]) == "A\ufffdB"
