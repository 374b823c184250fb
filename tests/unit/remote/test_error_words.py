"""The class of each error that a server answers."""

import inspect
from pathlib import Path

import pytest

from kvstore.remote import errors
from kvstore.remote.errors import EngineRefused, Reaction, RemoteError
from kvstore.remote.valkey.commands import ACL_RULES
from kvstore.remote.valkey.error_words import error_of

PAGE = Path(__file__).parents[3] / "docs" / "remote-engines.md"

LINES = {
    b"LOADING Valkey is loading the dataset in memory": "EngineLoading",
    b"CLUSTERDOWN Hash slot not served": "ClusterDown",
    b"MASTERDOWN Link with MASTER is down": "ClusterDown",
    b"MOVED 3999 127.0.0.1:6381": "WrongNode",
    b"ASK 3999 127.0.0.1:6381": "WrongNode",
    b"CROSSSLOT Keys in request don't hash to the same slot": "WrongNode",
    b"TRYAGAIN Multiple keys request during rehashing of slot": "TryAgain",
    b"READONLY You can't write against a read only replica.": "EngineReadOnly",
    b"BUSY Valkey is busy running a script.": "EngineBusy",
    b"MISCONF Errors writing to the AOF file": "EngineNotPersisting",
    b"NOREPLICAS Not enough good replicas to write.": "ReplicasMissing",
    b"OOM command not allowed when used memory > 'maxmemory'.": "EngineFull",
    b"NOAUTH Authentication required.": "CredentialRefused",
    b"WRONGPASS invalid username-password pair": "CredentialRefused",
    b"NOPERM User kvstore has no permissions to run the 'keys' command": "CommandForbidden",
    b"ERR unknown command": "EngineRefused",
    b"OOMX no such word": "EngineRefused",
    b"": "EngineRefused",
    b"\xff\xfe": "EngineRefused",
}


@pytest.mark.parametrize(("line", "name"), LINES.items(), ids=lambda each: str(each)[:20])
def test_each_word_has_a_class(line: bytes, name: str) -> None:
    """Only the whole first word counts."""
    assert type(error_of(line)).__name__ == name


def test_every_error_has_a_reaction_of_its_own_kind() -> None:
    """An unknown refusal costs one value, and never closes the tier."""
    classes = [each for _, each in inspect.getmembers(errors, inspect.isclass)]
    found = [each for each in classes if issubclass(each, RemoteError)]
    assert {each.reaction for each in found} == set(Reaction)
    assert EngineRefused.reaction is Reaction.VALUE
    described = errors.__doc__ or ""
    page = PAGE.read_text(encoding="utf-8").splitlines()
    for each in found[1:]:
        if each is not RemoteError:
            (line,) = (row for row in described.splitlines() if f" {each.__name__} " in row)
            assert each.reaction.name in line
            (row,) = (row for row in page if f"`{each.__name__}`" in row)
            assert row.startswith(f"| `{each.reaction.name}`")


def test_the_page_names_the_rights_of_the_tests() -> None:
    """An operator copies the rule that all tests of Valkey run under."""
    assert f"user kvstore on >PASSWORD {ACL_RULES}\n" in PAGE.read_text(encoding="utf-8")
