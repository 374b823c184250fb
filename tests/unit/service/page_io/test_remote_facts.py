"""Findings of an engine, and the time from which they count."""

from collections.abc import Iterator

from kvstore.remote.finding import EngineFinding, FindingKind
from kvstore.service.page_io.remote_facts import RemoteFacts

FINDING = EngineFinding(FindingKind.HITS, "maxmemory", "0", "it grows", "set maxmemory")


def test_an_engine_that_does_not_answer_leaves_what_was_found() -> None:
    """The last answer counts until there is another."""
    answers: Iterator[list[EngineFinding] | None] = iter([[FINDING], None, []])
    about = RemoteFacts("valkeys://x", key_id=b"1234", writes="off", find=lambda: next(answers))
    assert about.findings == ()
    for expected in ((FINDING,), (FINDING,), ()):
        about.ask_engine()
        assert about.findings == expected


def test_an_error_of_a_library_is_no_answer() -> None:
    """The thread that asks goes on, and what was found before stays."""
    answers = iter([[FINDING]])

    def find() -> list[EngineFinding]:
        found = next(answers, None)
        if found is None:
            raise OSError("a library fails as it likes")
        return found

    about = RemoteFacts("valkeys://x", key_id=b"1234", writes="off", find=find)
    for _ in range(2):
        about.ask_engine()
        assert about.findings == (FINDING,)
