"""The demo's script has one text, some questions, and a chat that changes worker."""

from pathlib import Path

import pytest
from tokenizers import Tokenizer as Trained
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerFast

from inference_worker.demo.script import AGAIN, DOCUMENT_TOKENS, QUESTIONS, WORKERS, DemoScript
from inference_worker.model.tokenizer import ByteTokenizer, Tokenizer, load_tokenizer

FEWEST_TOKENS = 15


@pytest.fixture(scope="module")
def bytewise() -> DemoScript:
    """Returns the script of a model whose tokens are bytes."""
    return DemoScript(ByteTokenizer())


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """Returns a tokenizer of few words that begins each text with an id of its own."""
    folder: Path = tmp_path_factory.mktemp("words")
    special = {"bos_token": "[BOS]", "unk_token": "[UNK]"}
    vocabulary = {text: number for number, text in enumerate(["[BOS]", "[UNK]", "the"])}
    trained = Trained(WordLevel(vocabulary, unk_token=special["unk_token"]))
    trained.pre_tokenizer = WhitespaceSplit()
    fast = PreTrainedTokenizerFast(tokenizer_object=trained, **special, add_bos_token=True)
    fast.save_pretrained(folder)
    return load_tokenizer(folder)


def test_bytes_take_the_beginning_of_the_text(bytewise: DemoScript) -> None:
    """A byte tokenizer takes only the first ``DOCUMENT_TOKENS`` bytes of the text."""
    assert len(bytewise.document) == DOCUMENT_TOKENS
    assert ByteTokenizer().decode(bytewise.document).startswith("We the People")


def test_another_tokenizer_takes_all_of_the_text(words: Tokenizer) -> None:
    """Another tokenizer takes the whole text, behind the tokenizer's own first ids."""
    script = DemoScript(words)
    count = len(script.document) - len(words.begin_ids)
    assert words.begin_ids == [0]
    assert script.document[: len(words.begin_ids)] == words.begin_ids
    assert DOCUMENT_TOKENS / 2 < count <= 2 * DOCUMENT_TOKENS


def test_questions_and_chat_change_worker_each_time(bytewise: DemoScript) -> None:
    """Questions and chat begin with the first worker, and the last question is new."""
    questions, chat, last = (
        list(bytewise.questions()),
        list(bytewise.chat()),
        bytewise.last_words(),
    )
    assert [turn.worker for turn in questions] == [*WORKERS, *WORKERS]
    assert [turn.worker for turn in chat] == [*WORKERS, *WORKERS]
    assert len(questions) == QUESTIONS
    assert last.worker == WORKERS[1]
    assert len({turn.text for turn in [*questions, *chat, last]}) == 9
    assert {turn.kind for turn in questions} == {"question"}
    assert {turn.kind for turn in chat} == {"chat"}


def test_the_first_question_is_asked_again(bytewise: DemoScript) -> None:
    """The other worker gets exactly the same ids."""
    first, again = next(bytewise.questions()), bytewise.again()
    assert (again.ids, again.kind) == (first.ids, AGAIN)
    assert {first.worker, again.worker} == {*WORKERS}


def test_each_turn_is_long_enough(bytewise: DemoScript) -> None:
    """A turn has at least fifteen tokens, also if a token has five bytes."""
    turns = [*bytewise.questions(), *bytewise.chat(), bytewise.last_words()]
    assert min(len(turn.ids) for turn in turns) > 5 * FEWEST_TOKENS
    assert all(ByteTokenizer().decode(turn.ids).strip() == turn.text for turn in turns)
