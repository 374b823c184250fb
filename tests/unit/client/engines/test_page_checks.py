"""Checks of announced pages against a store that evicts, fails and goes away."""

import logging
from collections.abc import Sequence
from threading import Event as Happened

import pytest

from kvstore_client.engines import page_checks
from kvstore_client.engines.announced_pages import AnnouncedPages
from kvstore_client.engines.page_checks import PATHS_A_ROUND, PageChecks

LIMIT = 20.0
Event = tuple[str, Sequence[str]]


class Store:
    """A store's pages by their paths, which are strings of letters, and what it was asked for."""

    def __init__(self) -> None:
        self.pages: AnnouncedPages[str, str, Event] = AnnouncedPages(
            lambda keys: ("removed", list(keys))
        )
        self.there: dict[bytes, int] = {}
        self.asked: list[bytes] = []
        self.usable = self.answers = True
        self.checks = PageChecks(self.pages, self.cached_pages, lambda: self.usable)

    def announce(self, path: str) -> None:
        """Announces a path that the store has."""
        keys = [path[: end + 1] for end in range(len(path))]
        tokens = path.encode()
        self.pages.present("model", keys, tokens, lambda first: ("stored", keys[first:]))
        self.there[tokens] = len(path)
        self.pages.take()

    def cached_pages(self, place: str, tokens: bytes) -> int | None:
        """Answers as the store does."""
        assert place == "model"
        self.asked.append(tokens)
        return self.there[tokens] if self.answers else None


def test_pages_that_left_the_store_are_withdrawn() -> None:
    """The last pages of one path; the rest stays."""
    store = Store()
    store.announce("abcd")
    store.announce("abx")
    store.checks.check()
    assert store.pages.take() == []
    store.there[b"abcd"] = 2
    store.checks.check()
    assert store.pages.take() == [("removed", ["abcd", "abc"])]
    assert len(store.pages) == 3
    store.there[b"abx"] = 0
    store.checks.check()
    assert store.pages.take() == [("removed", ["abx", "ab", "a"])]


def test_a_store_that_does_not_answer_changes_nothing() -> None:
    """The round ends, and the same path is asked for again."""
    store = Store()
    store.announce("a")
    store.announce("b")
    store.answers = False
    store.checks.check()
    store.checks.check()
    assert store.asked == [b"a", b"a"]
    assert len(store.pages) == 2


def test_nothing_is_announced_of_a_store_that_is_away() -> None:
    """No page of it can be loaded."""
    store = Store()
    store.announce("ab")
    store.usable = False
    store.checks.check()
    assert store.pages.take() == [("removed", ["ab", "a"])]
    assert store.asked == []


def test_a_round_asks_for_a_part_of_many_paths() -> None:
    """The next round goes on with the others."""
    store = Store()
    for number in range(PATHS_A_ROUND + 1):
        store.announce(chr(ord("A") + number))
    store.checks.check()
    assert len(store.asked) == PATHS_A_ROUND
    store.checks.check()
    assert store.asked[PATHS_A_ROUND] == chr(ord("A") + PATHS_A_ROUND).encode()


def test_the_thread_goes_on_after_an_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It checks until it is closed, and only then ends; it need not have been started."""
    Store().checks.close()
    monkeypatch.setattr(page_checks, "ROUND_SECONDS", 0.001)
    caplog.set_level(logging.ERROR, "kvstore_client")
    store, again = Store(), Happened()
    store.announce("a")
    failures = iter([True])

    def usable() -> bool:
        if next(failures, False):
            raise OSError("once")
        again.set()
        return True

    checks = PageChecks(store.pages, store.cached_pages, usable)
    checks.start()
    assert again.wait(LIMIT)
    checks.close()
    assert "page_check_failed" in caplog.text
