"""The structure of the repository as figures: folders, circles, levels, lines and words.

``python tests/support/structure.py`` prints a table, ``--json`` one JSON document. ``--root``
names another checkout to measure. Every import counts, wherever it stands in a file: also those
for types alone, and those within a function.
"""

import argparse
import ast
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
# Folders that stand on the import path, and what of them is ours to count.
PRODUCT = {
    "kvstore": ".",
    "inference_worker": ".",
    "clients/python": "clients/python",
}
TESTS = {
    "benchmarks": "benchmarks",
    "tests/support": "tests/support",
    "tests": "tests",
}
GENERATED = Path("kvstore/v1")
# First words that hide the subject of a docstring's first sentence.
OBSCURE = re.compile(
    r"(What|Which|Who|Whose|Whoever|How|Whether|Of|Where|Have|Let|Nor|So)\b",
)
# A row of the glossary's table, with the noun in bold.
NOUN = re.compile(r"^\| \*\*", re.MULTILINE)
Graph = Mapping[str, frozenset[str]]


@dataclass(frozen=True)
class Structure:
    """The figures of a checkout.

    ``folders`` has the modules and the lines of each. ``circles`` are sets of modules of which
    each imports each other, in the end. ``levels`` is the length of the longest chain of imports,
    where a circle counts as one module. ``product_openings`` and ``test_openings`` count the
    docstrings that begin with an obscure word, ``nouns`` the rows of the glossary.
    """

    folders: dict[str, tuple[int, int]]
    circles: list[list[str]]
    levels: dict[str, int]
    product_lines: int
    test_lines: int
    product_openings: int
    test_openings: int
    nouns: int


def modules(folders: Mapping[str, str], root: Path = ROOT) -> dict[str, Path]:
    """Returns the files of ours below some folders, by the names that they are imported under."""
    found: dict[str, Path] = {}
    for folder, start in folders.items():
        for path in sorted((root / folder).rglob("*.py")):
            if root / GENERATED not in path.parents and path not in found.values():
                parts = path.relative_to(root / start).with_suffix("").parts
                name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
                found.setdefault(name or folder, path)
    return found


def imports(files: Mapping[str, Path]) -> dict[str, frozenset[str]]:
    """Returns which of the modules each of them imports."""
    return {name: frozenset(_imported(path, files)) - {name} for name, path in files.items()}


def _imported(path: Path, files: Mapping[str, Path]) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names if alias.name in files)
            case ast.ImportFrom(module=str(module), names=names):
                for alias in names:
                    inner = f"{module}.{alias.name}"
                    yield from (each for each in (inner, module) if each in files)


def circles(graph: Graph) -> list[list[str]]:
    """Returns the circles of a graph, the largest first."""
    found = [sorted(each) for each in _components(graph) if len(each) > 1]
    return sorted(found, key=lambda each: (-len(each), each))


def levels(graph: Graph) -> int:
    """Returns how many modules the longest chain has, a circle counted as one."""
    depths: dict[str, int] = {}
    # Tarjan's components come in such an order that what one imports came before it.
    for component in _components(graph):
        below = {each for name in component for each in graph[name]} - set(component)
        depth = 1 + max((depths[each] for each in below), default=0)
        depths.update(dict.fromkeys(component, depth))
    return max(depths.values(), default=0)


def _components(graph: Graph) -> list[list[str]]:
    """Returns the strongly connected components, in Tarjan's order, without recursion."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    path: list[str] = []
    done: set[str] = set()
    components: list[list[str]] = []
    for start in graph:
        if start in order:
            continue
        stack = [(start, iter(sorted(graph[start])))]
        order[start] = low[start] = len(order)
        path.append(start)
        while stack:
            name, rest = stack[-1]
            following = next((each for each in rest if each not in done), None)
            if following is None:
                stack.pop()
                if stack:
                    low[stack[-1][0]] = min(low[stack[-1][0]], low[name])
                if low[name] == order[name]:
                    component = path[path.index(name) :]
                    del path[path.index(name) :]
                    done.update(component)
                    components.append(component)
            elif following in order:
                low[name] = min(low[name], order[following])
            else:
                order[following] = low[following] = len(order)
                path.append(following)
                stack.append((following, iter(sorted(graph[following]))))
    return components


def within(graph: Graph, package: str) -> Graph:
    """Returns the part of a graph that a package is."""
    names = {each for each in graph if each == package or each.startswith(f"{package}.")}
    return {name: graph[name] & names for name in names}


def line_count(paths: Iterable[Path]) -> int:
    """Returns how many lines some files have."""
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths)


def obscure_openings(path: Path) -> list[str]:
    """Returns the docstrings of a file that begin with an obscure word, those of fields too."""
    # A docstring is a string that stands alone, wherever it is.
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    alone = (node.value for node in nodes if isinstance(node, ast.Expr))
    found = (each.value for each in alone if isinstance(each, ast.Constant))
    return [each for each in found if isinstance(each, str) and OBSCURE.match(each)]


def opening_count(paths: Iterable[Path]) -> int:
    """Returns how many docstrings of some files begin with an obscure word."""
    return sum(len(obscure_openings(path)) for path in paths)


def noun_count(root: Path) -> int:
    """Returns how many nouns the glossary of a checkout has, 0 without a glossary."""
    glossary = root / "docs" / "glossary.md"
    return len(NOUN.findall(glossary.read_text(encoding="utf-8"))) if glossary.exists() else 0


def structure(root: Path = ROOT) -> Structure:
    """Returns the figures of the repository, or of another checkout of it."""
    product, tests = modules(PRODUCT, root), modules(TESTS, root)
    graph = imports(product | tests)
    by_folder: dict[str, list[Path]] = defaultdict(list)
    for path in (*product.values(), *tests.values()):
        by_folder[path.parent.relative_to(root).as_posix()].append(path)
    tops = Counter(name.split(".")[0] for name in product)
    packages = [*tops, "kvstore.core"]
    return Structure(
        folders={name: (len(each), line_count(each)) for name, each in sorted(by_folder.items())},
        circles=circles(graph),
        levels={each: levels(within(graph, each)) for each in sorted(packages)},
        product_lines=line_count(product.values()),
        test_lines=line_count(tests.values()),
        product_openings=opening_count(product.values()),
        test_openings=opening_count(tests.values()),
        nouns=noun_count(root),
    )


def main() -> None:
    """Prints the figures."""
    parser = argparse.ArgumentParser(description="Prints the structure of the repository.")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--root", type=Path, default=ROOT, help="the checkout to measure")
    options = parser.parse_args()
    found = structure(options.root.resolve())
    if options.json:
        print(json.dumps(asdict(found), indent=1))  # noqa: T201  # the result
        return
    lines = [f"{'folder':<44} modules   lines"]
    lines += [f"{name:<44} {count:>7} {size:>7}" for name, (count, size) in found.folders.items()]
    lines += [f"levels of {name:<34} {count:>7}" for name, count in found.levels.items()]
    lines += [f"lines of product {found.product_lines}, of tests {found.test_lines}"]
    lines += [
        f"obscure openings of product {found.product_openings}, of tests {found.test_openings}"
    ]
    lines += [f"nouns of the glossary {found.nouns}"]
    lines += [f"import circles {len(found.circles)}"]
    lines += [f"  of {len(each)}: {' '.join(each)}" for each in found.circles]
    print("\n".join(lines))  # noqa: T201  # the result


if __name__ == "__main__":
    main()
