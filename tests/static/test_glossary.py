"""Names of the product: the glossary's words, one class for one name, and files that tell apart.

Each check has a test of its own that it fails where it should.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import combinations
from pathlib import Path
from typing import Final

from structure import PRODUCT, modules

ROOT = Path(__file__).parents[2]
GLOSSARY = ROOT / "docs" / "glossary.md"

# A word that no class or file of the product has in its name, and the word to use instead.
SYNONYMS: Final[Mapping[str, str]] = {
    "announcer": "publisher",
    "book": "table",
    "departure": "reclaim",
    "departures": "reclaim",
    "errand": "probe",
    "forecast": "prefill in flight",
    "gate": "breaker",
    "handout": "mapping",
    "handouts": "mapping",
    "holding": "hold",
    "holdings": "tenant",
    "keep": "disk write",
    "keeping": "disk write",
    "law": "invariant",
    "laws": "invariant",
    "ledger": "counts",
    "membership": "lease",
    "patience": "timeout",
    "placing": "allocator",
    "room": "free list",
    "seat": "slot",
    "sheet": "collector",
    "shelf": "arena",
    "shown": "view",
    "suggestion": "hint",
    "ticket": "admission",
    "told": "event",
    "watching": "watch",
    "wish": "options",
    "wishes": "options",
}
# Class names that stand for one thing in several packages. Errors are twins by themselves: both
# sides have a class for each reason of the protocol.
TWINS: Final = frozenset(
    (
        # The client's side of a thing of the store, with the name that its users know.
        *("EventWatch", "Hold", "InFlight", "Inserted", "Match", "Namespace", "PrefixCache"),
        *("NamespaceIdentity", "OpaqueContent", "PageLayout", "PagedContent", "Reservation"),
        *("GroupInsert", "GroupPages", "GroupWindow", "Prefetched", "ReuseHint", "RuntimeDir"),
        "Source",
        # The worker's own pages, without a store.
        "PageRef",
        # Memory that the server exports and the client maps, and CUDA on both sides.
        *("CudaDriver", "CudaExtent", "CupyRuntime", "HostExtent"),
        # A part of the core, and its use by the service.
        *("Matching", "Process", "Tenant"),
        # A length-delimited message of a socket.
        "Frame",
    )
)
# Names of two different things that are still to be told apart: only ever fewer.
AMBIGUOUS: Final = frozenset({"RemoteStore", "Sampler", "Step", "Tail"})
ENDINGS: Final = ("", "s", "es", "r", "er", "or", "d", "ed", "ing", "ion", "ions")


def words(name: str) -> set[str]:
    """Returns the words of a CamelCase or snake_case name."""
    return set(re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().split("_"))


def classes(path: Path) -> Iterator[str]:
    """Yields the classes that a file defines at its top."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef):
            yield node.name


def synonyms(files: Iterable[Path]) -> list[str]:
    """Returns the names of files and classes with a banned word, and the word to use instead."""
    return [
        f"{path.name}: {name}: say {SYNONYMS[word]} for {word}"
        for path in files
        for name in (path.stem, *classes(path))
        for word in sorted(words(name) & SYNONYMS.keys())
    ]


def homonyms(files: Iterable[Path]) -> dict[str, list[Path]]:
    """Returns the public class names that several files define, with the files."""
    found: dict[str, list[Path]] = defaultdict(list)
    for path in files:
        for name in classes(path):
            if not name.startswith("_"):
                found[name].append(path)
    return {name: paths for name, paths in found.items() if len(paths) > 1}


def differ_by_ending(one: str, other: str) -> bool:
    """Returns whether two names have a common stem, and endings of grammar after it."""
    return bool(_stems(one) & _stems(other))


def _stems(name: str) -> set[str]:
    stems = {name.removesuffix(ending) for ending in ENDINGS if name.endswith(ending)}
    return stems | {f"{stem}e" for stem in stems}


def similar_files(files: Iterable[Path]) -> list[str]:
    """Returns the pairs of files of one folder whose names differ only by an ending."""
    by_folder: dict[Path, list[str]] = defaultdict(list)
    for path in files:
        by_folder[path.parent].append(path.stem)
    return [
        f"{folder.name}: {one}, {other}"
        for folder, stems in by_folder.items()
        for one, other in combinations(sorted(stems), 2)
        if differ_by_ending(one, other)
    ]


def test_names_use_the_words_of_the_glossary() -> None:
    """No class and no file of the product is named with a synonym of a word of ours."""
    assert synonyms(modules(PRODUCT).values()) == []


def test_the_glossary_has_at_most_40_words() -> None:
    """A reader keeps no more in mind."""
    words_of_ours = re.findall(r"^\| \*\*(.+?)\*\* \|", GLOSSARY.read_text(), re.MULTILINE)
    assert 30 < len(words_of_ours) <= 40
    assert len(set(words_of_ours)) == len(words_of_ours)


def test_a_class_name_means_one_thing() -> None:
    """No two files define a public class of one name, except the twins."""
    found = homonyms(modules(PRODUCT).values())
    unknown = {
        name: [str(each.relative_to(ROOT)) for each in paths]
        for name, paths in found.items()
        if name not in TWINS | AMBIGUOUS and {each.name for each in paths} != {"errors.py"}
    }
    assert unknown == {}
    assert found.keys() >= TWINS | AMBIGUOUS, "strike those that are found no more"


def test_no_two_files_of_a_folder_differ_by_an_ending() -> None:
    """A reader who knows the noun knows the file."""
    assert similar_files(modules(PRODUCT).values()) == []


def test_a_synonym_is_found(tmp_path: Path) -> None:
    """In the name of a file and of a class, and only as a whole word."""
    path = tmp_path / "room.py"
    path.write_text("class SlabBook:\n    pass\n\n\nclass Bookmarks:\n    pass\n")
    assert synonyms([path]) == [
        "room.py: room: say free list for room",
        "room.py: SlabBook: say table for book",
    ]


def test_a_name_of_two_classes_is_found(tmp_path: Path) -> None:
    """Private classes are of their file alone."""
    one, other = tmp_path / "one.py", tmp_path / "other.py"
    for path in (one, other):
        path.write_text("class Frame:\n    pass\n\n\nclass _Open:\n    pass\n")
    assert homonyms([one, other]) == {"Frame": [one, other]}


def test_names_that_differ_by_an_ending_are_found(tmp_path: Path) -> None:
    """Endings of grammar count, other words and other folders do not."""
    pairs = [("keep", "keeper"), ("keeping", "keeper"), ("tier", "tiers"), ("move", "moving")]
    assert all(differ_by_ending(*pair) for pair in pairs)
    assert not any(differ_by_ending(*pair) for pair in [("read", "reload"), ("slab", "slot")])
    files = [tmp_path / "a" / "move.py", tmp_path / "a" / "moves.py", tmp_path / "b" / "moved.py"]
    assert similar_files(files) == ["a: move, moves"]


def test_the_words_to_use_are_no_synonyms() -> None:
    """The advice for a refused name is not refused itself."""
    assert all(words(each.replace(" ", "_")).isdisjoint(SYNONYMS) for each in SYNONYMS.values())
