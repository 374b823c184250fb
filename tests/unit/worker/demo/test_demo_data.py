"""The demo's text and questions are part of the package, and long enough."""

import json
from importlib.resources import files

DATA = files("inference_worker") / "data"


def test_the_text_is_long_enough_for_bytes() -> None:
    """The text has 2000 bytes of plain English for a model without a tokenizer."""
    text = (DATA / "demo_text.txt").read_text()
    assert text.startswith("We the People")
    assert len(text[:2000].encode()) == 2000


def test_there_are_questions_and_a_chat() -> None:
    """The data has at least eight questions and four turns, each of at least fifteen tokens."""
    data = json.loads((DATA / "demo_questions.json").read_text())
    assert len(set(data["questions"])) == len(data["questions"]) >= 8
    assert len(data["chat"]) == 4
    # A token of Gemma has 4.9 bytes of this text.
    assert min(len(text) for text in data["questions"] + data["chat"]) > 75
