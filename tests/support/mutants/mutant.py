"""A fault put into a copy of the code on purpose."""

import ast
from importlib.util import cache_from_source
from pathlib import Path
from textwrap import indent
from typing import NamedTuple

DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


class Mutant(NamedTuple):
    """A fault: one expression or statement of a function is replaced.

    ``function`` is a function's or a class's qualified name within the module. ``old`` is source
    whose syntax tree occurs there once: its layout, comments and lines do not count.
    """

    name: str
    module: str
    function: str
    old: str
    new: str

    def path_in(self, folder: Path) -> Path:
        """Returns the path of the module in a folder that has its top package."""
        return folder.joinpath(*self.module.split(".")).with_suffix(".py")


UNCHANGED = Mutant("unchanged", "", "", "", "")


def changed(mutant: Mutant, source: str) -> str:
    """Returns the source with the fault. Raises `AssertionError` unless ``old`` occurs once."""
    wanted = _shape(_parsed(mutant.old))
    nodes = [each for each in ast.walk(_function(mutant, source)) if _shape(each) == wanted]
    assert len(nodes) == 1, f"{mutant.name}: {len(nodes)} times in {mutant.function}: {mutant.old}"
    [node] = nodes
    assert isinstance(node, ast.stmt | ast.expr)
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    lines = source.encode().splitlines(keepends=True)
    before = b"".join(lines[: node.lineno - 1]) + lines[node.lineno - 1][: node.col_offset]
    after = lines[node.end_lineno - 1][node.end_col_offset :] + b"".join(lines[node.end_lineno :])
    new = indent(mutant.new, " " * node.col_offset).lstrip()
    # The lines below keep their numbers if the replacement is not longer.
    gap = "\n" * (node.end_lineno - node.lineno - new.count("\n"))
    return (before + (new + gap).encode() + after).decode()


def put_in(mutant: Mutant, folder: Path) -> None:
    """Makes the change in the module below ``folder``; `UNCHANGED` changes nothing."""
    if mutant == UNCHANGED:
        return
    path = mutant.path_in(folder)
    path.write_text(changed(mutant, path.read_text(encoding="utf-8")), encoding="utf-8")
    # It may have come with what it was compiled to.
    Path(cache_from_source(path)).unlink(missing_ok=True)


def _function(mutant: Mutant, source: str) -> ast.AST:
    """Returns the function's or the class's definition."""
    node: ast.AST = ast.parse(source)
    for name in mutant.function.split("."):
        named = [
            each
            for each in ast.iter_child_nodes(node)
            if isinstance(each, DEFINITIONS) and each.name == name
        ]
        assert len(named) == 1, f"{mutant.name}: {mutant.module} has no {mutant.function}"
        [node] = named
    return node


def _parsed(source: str) -> ast.AST:
    """Returns the expression or the statement that ``source`` is."""
    [statement] = ast.parse(source).body
    return statement.value if isinstance(statement, ast.Expr) else statement


def _shape(node: ast.AST) -> str:
    """Returns what equal syntax trees have in common, wherever they stand."""
    return ast.dump(node) if isinstance(node, ast.stmt | ast.expr) else ""
