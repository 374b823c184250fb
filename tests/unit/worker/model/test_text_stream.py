"""Text is streamed in whole characters as it arrives, without repeated decoding of all ids."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_worker.model.text import MANY_IDS, TextStream
from inference_worker.model.tokenizer import ByteTokenizer

TOKENIZER = ByteTokenizer()
NO_TEXT = 300


class CountingTokenizer(ByteTokenizer):
    """A tokenizer of bytes that counts the ids that it decodes."""

    decoded = 0

    def decode(self, ids: Sequence[int]) -> str:
        """Counts the ids and decodes them."""
        self.decoded += len(ids)
        return super().decode(ids)


class WordTokenizer(ByteTokenizer):
    """A tokenizer like SentencePiece. Each id is a word after a space, except the first."""

    def decode(self, ids: Sequence[int]) -> str:
        """Returns the words."""
        return "".join(f" w{i}" for i in ids if i < NO_TEXT).removeprefix(" ")


def pieces_of(
    ids: Sequence[int], tokenizer: ByteTokenizer = TOKENIZER, context: Sequence[int] = ()
) -> list[str]:
    """Streams ids one at a time."""
    pieces: list[str] = []
    stream = TextStream(tokenizer, pieces.append, context)
    for each in ids:
        stream.add(each)
    stream.end()
    return pieces


def test_each_id_is_handed_on_at_once() -> None:
    """A character of one id is given at once."""
    assert pieces_of(b"abc") == ["a", "b", "c"]
    assert pieces_of(b"") == []


def test_a_character_of_several_ids_comes_whole() -> None:
    """A character of several ids is given with its last id."""
    assert pieces_of("aé€b".encode()) == ["a", "é", "€", "b"]
    assert pieces_of("😀".encode()) == ["😀"]


@pytest.mark.parametrize(
    "content",
    [b"a\xffb", b"\xff", b"a\xe2\x82", b"\xe2\x82\xe2\x82\xac.", b"\xf0\x9f" * 80 + "😀".encode()],
)
def test_what_is_no_character_is_not_lost(content: bytes) -> None:
    """All pieces together are the text that the tokenizer gives for all ids."""
    pieces = pieces_of(content)
    assert "".join(pieces) == TOKENIZER.decode(list(content))
    assert all(pieces)


@given(st.lists(st.sampled_from([*b"a\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\xff", NO_TEXT])))
def test_no_cut_changes_the_text(ids: list[int]) -> None:
    """Bytes of any kind and order give the text of decoding them at once."""
    assert "".join(pieces_of(ids)) == TOKENIZER.decode(ids)


@pytest.mark.parametrize("content", [b"a", "é".encode(), "😀".encode(), b"\xff", b"\xf0\x9f"])
def test_the_work_grows_with_the_ids_alone(content: bytes) -> None:
    """Each id is decoded a bounded number of times, independent of the number before it."""
    tokenizer = CountingTokenizer()
    ids = list(content) * (4000 // len(content))
    assert "".join(pieces_of(ids, tokenizer)) == TOKENIZER.decode(ids)
    assert tokenizer.decoded <= 4 * MANY_IDS * len(ids)


def test_ids_without_text_are_let_go() -> None:
    """Ids without text are decoded once, and do not change the spelling of later words."""
    tokenizer = CountingTokenizer()
    assert "".join(pieces_of([*b"a", *[NO_TEXT] * 4000, *b"b"], tokenizer)) == "ab"
    assert tokenizer.decoded <= 4 * MANY_IDS * 4000
    assert "".join(pieces_of([1, *[NO_TEXT] * 100, 2], WordTokenizer())) == "w1 w2"


def test_a_word_is_spelt_as_after_what_was_before() -> None:
    """Spaces between words are kept. After a context the first word has its space too."""
    assert pieces_of([1, 2, 3], WordTokenizer()) == ["w1", " w2", " w3"]
    assert pieces_of([1, 2, 3], WordTokenizer(), [8, 9]) == [" w1", " w2", " w3"]


def test_a_character_may_begin_in_the_context() -> None:
    """A character that begins in the context is given whole with its last byte."""
    assert pieces_of(b"\xa9x", context=b"ab\xc3") == ["é", "x"]


@pytest.mark.parametrize(
    ("context", "said", "text"),
    [
        ("\u4e2d\ufffd".encode(), b"x", "x"),
        ("\U0001f600\ufffd".encode(), b"", ""),
        ("\U0001f600".encode()[1:] + b"\xc3", b"\xa9x", "\xe9x"),
        (b"ab\xc3", b"x", "x"),
        (b"ab\xc3", b"\xc3\xa9", "\xe9"),
    ],
)
def test_what_is_no_character_in_the_context_is_not_said_again(
    context: bytes, said: bytes, text: str
) -> None:
    """Broken characters at the end of a prompt are not repeated."""
    assert "".join(pieces_of(said, context=context)) == text
