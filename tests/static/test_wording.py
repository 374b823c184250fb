"""The words of names in the core and the protocol, and the first words of docstrings.

Block, handle, lock and object are not nouns or verbs of ours: a page is a page, a hold is a pin.
A docstring begins with a verb or a noun phrase, so that a reader finds its subject at once.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from structure import PRODUCT, TESTS, modules, obscure_openings

ROOT = Path(__file__).parents[2]
NOT_OURS = frozenset({"block", "blocks", "handle", "handles", "lock", "locks", "object", "objects"})
# Terms of the field, which keep their own words.
TERMS = re.compile(r"block_table|block_hash")
# What a system gives out for an extent's memory is a handle to the rest of the world.
EXTENT_HANDLES = frozenset({"handle", "ipc_handle", "HostHandle", "CudaIpcHandle", "VmmFdHandle"})


def words(name: str) -> set[str]:
    """Returns the words of a CamelCase or snake_case name, without the field's terms."""
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    return set(TERMS.sub("", snake).split("_"))


def python_names(path: Path) -> Iterator[str]:
    """Yields the classes and functions that a file defines."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name


def proto_names(path: Path) -> Iterator[str]:
    """Yields the services, methods, messages, enums, fields and values that a file defines."""
    code = re.sub(r"//.*", "", path.read_text(encoding="utf-8"))
    yield from re.findall(r"\b(?:service|rpc|message|enum|oneof)\s+(\w+)", code)
    yield from re.findall(r"(\w+)\s*=\s*\d+", code)


def test_names_of_the_core_use_our_words() -> None:
    """No class or function of the core is named with a word that is not ours."""
    paths = sorted((ROOT / "kvstore" / "core").rglob("*.py"))
    wrong = [(p.name, name) for p in paths for name in python_names(p) if words(name) & NOT_OURS]
    assert wrong == []


def test_names_of_the_protocol_use_our_words() -> None:
    """No definition of the contract is named with a word that is not ours."""
    paths = sorted((ROOT / "proto").rglob("*.proto"))
    wrong = [
        (path.name, name)
        for path in paths
        for name in proto_names(path)
        if words(name) & NOT_OURS and name not in EXTENT_HANDLES
    ]
    assert wrong == []


def test_docstrings_begin_with_a_verb_or_a_noun() -> None:
    """No docstring begins with an obscure word."""
    files = modules(dict.fromkeys(PRODUCT | TESTS, ".")).values()
    found = [
        (str(path.relative_to(ROOT)), each) for path in files for each in obscure_openings(path)
    ]
    assert found == []


def test_obscure_first_words_are_found(tmp_path: Path) -> None:
    """Docstrings of modules, classes, functions and fields are read; only whole words count."""
    path = tmp_path / "example.py"
    path.write_text(
        '"""Of a page."""\n'
        "class Whole:\n"
        '    """Whatever is whole."""\n'
        "    field: int = 0\n"
        '    """Which number."""\n'
        "    async def go(self):\n"
        '        """Let go."""\n'
    )
    assert obscure_openings(path) == ["Of a page.", "Which number.", "Let go."]


def test_the_words_of_a_name_are_found() -> None:
    """Camel case and snake case are taken apart, and terms of the field are let through."""
    assert words("BlockManager") & NOT_OURS == {"block"}
    assert words("drop_objects") & NOT_OURS == {"objects"}
    assert words("BlockTable") & NOT_OURS == set()
    assert words("clock") & NOT_OURS == set()
