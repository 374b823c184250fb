"""Text is handed on as it comes, in whole characters."""

import pytest

from inference_worker.byte_tokenizer import ByteTokenizer
from inference_worker.text_stream import TextStream

TOKENIZER = ByteTokenizer()


def pieces_of(content: bytes) -> list[str]:
    """Stream bytes one at a time."""
    pieces: list[str] = []
    stream = TextStream(TOKENIZER, pieces.append)
    for each in content:
        stream.add(each)
    stream.end()
    return pieces


def test_each_id_is_handed_on_at_once() -> None:
    """A character of one id does not wait for the next."""
    assert pieces_of(b"abc") == ["a", "b", "c"]
    assert pieces_of(b"") == []


def test_a_character_of_several_ids_comes_whole() -> None:
    """Nothing is handed on before its last id."""
    assert pieces_of("aé€b".encode()) == ["a", "é", "€", "b"]


@pytest.mark.parametrize("content", [b"a\xffb", b"\xff", b"a\xe2\x82", b"\xe2\x82\xe2\x82\xac."])
def test_what_is_no_character_is_not_lost(content: bytes) -> None:
    """All pieces together are the text that the tokenizer gives for all ids."""
    pieces = pieces_of(content)
    assert "".join(pieces) == TOKENIZER.decode(list(content))
    assert all(pieces)
