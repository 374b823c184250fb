"""Faults that are put into copies of our code: each has its place, and is code."""

import ast
from pathlib import Path

import pytest

import kvstore
import kvstore_client
from mutants import engine, simulation
from mutants.mutant import UNCHANGED, Mutant, changed
from mutants.mutant_hunt import ALL

STORE = Path(kvstore.__file__).parents[1]
CLIENT = Path(kvstore_client.__file__).parents[1]
MUTANTS = {each.name: each for each in (*ALL, *dict(engine.MUTANTS), *simulation.MUTANTS)}
del MUTANTS[UNCHANGED.name]
SOURCE = """
class Account:
    def pay(self, amount):
        if amount > 0:  # a comment
            self.balance -= amount
            return [amount]
        return []
"""


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=MUTANTS)
def test_a_fault_has_its_place(mutant: Mutant) -> None:
    """The function has the node once, and the changed module can be parsed."""
    path = mutant.path_in(CLIENT if mutant.module.startswith("kvstore_client") else STORE)
    source = path.read_text(encoding="utf-8")
    assert ast.dump(ast.parse(changed(mutant, source))) != ast.dump(ast.parse(source))


def test_names_are_distinct() -> None:
    """Each fault has a name of its own, by which its seed is found."""
    assert len({each.name for each in ALL}) == len(ALL)


@pytest.mark.parametrize(
    ("old", "new", "lines"),
    [
        ("amount > 0", "True", "        if True:  # a comment"),
        ("self.balance -= amount", "pass", "            pass"),
        ("return [ amount ]", "x = 1\nreturn x", "            x = 1\n            return x"),
    ],
)
def test_a_node_is_replaced(old: str, new: str, lines: str) -> None:
    """The replacement has the indentation of the node, and nothing else changes."""
    source = changed(Mutant("a", "account", "Account.pay", old, new), SOURCE)
    assert [each for each in source.splitlines() if each not in SOURCE.splitlines()] == (
        lines.splitlines()
    )


def test_lines_keep_their_numbers() -> None:
    """A replacement that is shorter leaves empty lines."""
    old = "if amount > 0:\n    self.balance -= amount\n    return [amount]"
    source = changed(Mutant("a", "account", "Account.pay", old, "pass"), SOURCE)
    assert source.splitlines().index("        return []") == SOURCE.splitlines().index(
        "        return []"
    )


@pytest.mark.parametrize(
    ("function", "old", "message"),
    [
        ("Account.pay", "amount > 1", "a: 0 times in Account.pay: amount > 1"),
        ("Account.pay", "amount", "a: 3 times in Account.pay: amount"),
        ("Account.owe", "amount", "a: account has no Account.owe"),
    ],
)
def test_a_fault_without_its_place_is_told(function: str, old: str, message: str) -> None:
    """The error says which mutant does not fit any more, and why."""
    with pytest.raises(AssertionError, match=message):
        changed(Mutant("a", "account", function, old, "pass"), SOURCE)
