"""A consumer of an engine's events knows the pages that a naive table has, after any history."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from kvstore_client.engines.announced_pages import AnnouncedPages, AnnouncedPath

# A page is named by the path through it: two letters, or one of another namespace.
Path = tuple[str, ...]
Event = tuple[str, Sequence[Path]]

PATHS = st.lists(st.sampled_from("ab"), min_size=1, max_size=5).map(tuple)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["present", "present", "absent", "ask", "checked", "clear"]),
        PATHS,
        st.integers(0, 5),
    ),
    max_size=40,
)


def keys_of(path: Path) -> list[Path]:
    """Returns the names of a path's pages."""
    return [path[: number + 1] for number in range(len(path))]


class Told:
    """A table, and the pages that its events have told a consumer of."""

    def __init__(self, most_pages: int) -> None:
        self.known: set[Path] = set()
        self.table: AnnouncedPages[Path, str, Event] = AnnouncedPages(
            lambda keys: ("removed", list(keys)), most_pages=most_pages
        )

    def present(self, path: Path) -> None:
        """Reports a path to be there."""
        keys = keys_of(path)
        tokens = "".join(path).encode()
        self.table.present("here", keys, tokens, lambda first: ("stored", keys[first:]))

    def hear(self) -> None:
        """Applies the events so far: no page is announced or withdrawn twice."""
        for kind, pages in self.table.take():
            for page in pages:
                if kind == "stored":
                    assert page not in self.known
                    assert page[:-1] in self.known or len(page) == 1, "its parent is unknown"
                    self.known.add(page)
                else:
                    self.known.remove(page)
                    assert not any(each[: len(page)] == page for each in self.known)
        assert not self.table.has_events
        assert len(self.known) == len(self.table)


def without(pages: set[Path], top: Path) -> set[Path]:
    """Returns pages that are not a page or below it."""
    return {each for each in pages if each[: len(top)] != top}


class Naive:
    """The pages that were reported to be there, and the path that was asked for last."""

    def __init__(self, told: Told) -> None:
        self.told = told
        self.pages = set[Path]()
        self.asked: AnnouncedPath[Path, str] | None = None
        self.since_asked = set[Path]()

    def present(self, path: Path, _: int) -> None:
        """The store has a path."""
        self.told.present(path)
        self.pages.update(keys_of(path))
        self.since_asked.update(keys_of(path))

    def absent(self, path: Path, number: int) -> None:
        """The store lacks a page of a path, if it has so many."""
        self.told.table.absent(keys_of(path), number)
        if number < len(path):
            self.pages = without(self.pages, path[: number + 1])

    def clear(self, *_: object) -> None:
        """The store is away."""
        self.told.table.clear()
        self.pages = set()

    def ask(self, *_: object) -> None:
        """A check begins."""
        [self.asked] = self.told.table.oldest_paths(1) or [None]
        self.since_asked = set()

    def checked(self, _: Path, number: int) -> None:
        """Its answer comes: pages that were reported since are newer."""
        if self.asked is None:
            return
        assert self.asked.tokens == "".join(self.asked.keys[-1]).encode()
        self.told.table.checked(self.asked, number)
        old = [key for key in self.asked.keys[number:] if key not in self.since_asked]
        if old and old[0] in self.pages:
            self.pages = without(self.pages, old[0])


@given(steps=STEPS)
def test_events_tell_what_was_reported(steps: list[tuple[str, Path, int]]) -> None:
    """Reports, misses, checks whose answers are late, and the end of everything."""
    told = Told(most_pages=1_000)
    naive = Naive(told)
    for step, path, number in steps:
        getattr(naive, step)(path, number)
        told.hear()
        assert told.known == naive.pages


@given(paths=st.lists(PATHS, max_size=30), most_pages=st.integers(1, 8))
def test_a_full_table_withdraws_what_it_saw_longest_ago(paths: list[Path], most_pages: int) -> None:
    """It stays small and whole, and has the path that was reported last as far as it fits."""
    told = Told(most_pages)
    for path in paths:
        told.present(path)
        told.hear()
        assert len(told.known) <= most_pages
        assert set(keys_of(path)[:most_pages]) <= told.known


def test_paths_are_checked_in_turns() -> None:
    """The one that was seen longest ago comes first, then the next."""
    told = Told(most_pages=100)
    for path in (("a", "a"), ("b",), ("a", "b")):
        told.present(path)
    seen = []
    for _ in range(4):
        [path] = told.table.oldest_paths(1)
        seen.append(path.keys[-1])
        told.table.checked(path, len(path.keys))
    assert seen == [("a", "a"), ("b",), ("a", "b"), ("a", "a")]
    told.present(("b",))
    assert [each.keys[-1] for each in told.table.oldest_paths(9)] == [
        ("a", "b"),
        ("a", "a"),
        ("b",),
    ]
