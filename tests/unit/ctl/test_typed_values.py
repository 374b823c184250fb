"""Values that an operator types."""

import io
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from kvstore.v1 import store_pb2
from kvstore_client.values.packed_tokens import pack_tokens
from kvstore_ctl.typed_values import namespace_of, namespaces_of, span_of, title_of, tokens_of

SPACES = [
    store_pb2.NamespaceInfo(namespace_id=bytes.fromhex(key * 8), identity={"display_name": name})
    for key, name in (("ab01", "gemma"), ("ab02", "gemma-large"), ("cd03", ""), ("ee04", "twin"))
]
TWIN = store_pb2.NamespaceInfo(namespace_id=b"\xef" * 16, identity={"display_name": "twin"})


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("90s", 90), ("0.5", 0.5), ("10m", 600), ("1.5h", 5_400), ("7d", 604_800)],
)
def test_a_span_of_time_has_a_unit(text: str, seconds: float) -> None:
    """The unit is seconds, minutes, hours or days, by default seconds."""
    assert span_of(text) == seconds


@pytest.mark.parametrize("text", ["", "s", "-1", "1 h", "1w", "1h30m", "1e3", "inf"])
def test_what_is_no_span_of_time_is_refused(text: str) -> None:
    """The error has an example of a valid time."""
    with pytest.raises(ValueError, match="12h"):
        span_of(text)


@pytest.mark.parametrize(
    "text",
    ["[1, 2, 300000]", "\n[1,2,300000]\n", "1 2 300000", "1\n2\n300000\n", " 1, 2,300000 "],
)
def test_tokens_are_read_in_decimal(tmp_path: Path, text: str) -> None:
    """Tokens are a JSON list, or numbers with any usual separator."""
    path = tmp_path / "tokens"
    path.write_text(text, encoding="utf-8")
    assert tokens_of(str(path), packed=False) == pack_tokens([1, 2, 300_000])


def test_tokens_are_read_as_they_travel(tmp_path: Path) -> None:
    """A packed file is read unchanged, and must have whole tokens."""
    path = tmp_path / "tokens"
    path.write_bytes(b"1234")
    assert tokens_of(str(path), packed=True) == b"1234"
    assert tokens_of(str(path), packed=False) == pack_tokens([1234])
    path.write_bytes(b"12345")
    with pytest.raises(ValueError, match="tokens from"):
        tokens_of(str(path), packed=True)


def test_tokens_are_read_from_stdin(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dash means stdin."""
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"5 6")))
    assert tokens_of("-", packed=False) == pack_tokens([5, 6])


def test_an_empty_file_has_no_tokens(tmp_path: Path) -> None:
    """An empty file is an empty sequence."""
    path = tmp_path / "tokens"
    path.write_text("\n", encoding="utf-8")
    assert tokens_of(str(path), packed=False) == b""


@pytest.mark.parametrize(
    "content",
    [
        b"one",
        b"1.5",
        b"-1",
        b"4294967296",
        b"[1, 2",
        b'["1"]',
        b"[[1]]",
        b"[" * 100_000,
        b"\xff\xfe",
    ],
    ids=range(9),
)
def test_what_are_no_tokens_is_refused(tmp_path: Path, content: bytes) -> None:
    """Words, fractions, ids out of range and broken lists are refused. The error names the file."""
    path = tmp_path / "tokens"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=str(path)):
        tokens_of(str(path), packed=False)


def test_a_word_that_is_no_token_is_named(tmp_path: Path) -> None:
    """The error has the word's place and text, cut if it is long, and the expected form."""
    path = tmp_path / "README.md"
    path.write_text("1 2\n# kv" + "s" * 100, encoding="utf-8")
    with pytest.raises(ValueError, match=r"README.md: word 3 is '#': give token ids"):
        tokens_of(str(path), packed=False)
    path.write_text("x" * 100, encoding="utf-8")
    with pytest.raises(ValueError, match=r"word 1 is 'x{17}\.\.\.': "):
        tokens_of(str(path), packed=False)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    """A file that does not exist is refused."""
    with pytest.raises(ValueError, match="No such file"):
        tokens_of(str(tmp_path / "nothing"), packed=False)


@pytest.mark.parametrize(
    ("named", "found"),
    [("ab01", 0), ("gemma", 0), ("gemma-", 1), ("cd", 2), ("cd03" * 8, 2), ("t", 3)],
)
def test_a_namespace_is_named_by_how_it_begins(named: str, found: int) -> None:
    """A unique prefix of an id or name is enough. A whole name is preferred to longer ones."""
    assert namespace_of(SPACES, named) is SPACES[found]


def test_the_only_namespace_needs_no_name() -> None:
    """No name is needed if only one namespace exists."""
    assert namespace_of(SPACES[:1], "") is SPACES[0]


@pytest.mark.parametrize(
    ("named", "known"),
    [
        ("", "^5 namespaces: choose one with --namespace, of gemma \\(ab01ab01\\), "),
        ("ab", "begin with 'ab': .* --namespace, of gemma .*, gemma-large \\(ab02ab02\\)$"),
        ("twin", "efefefef"),
        ("x", "begins with 'x'; known are: .*cd03cd03"),
    ],
)
def test_a_namespace_that_is_not_one_is_refused(named: str, known: str) -> None:
    """A name of several namespaces or none is refused, with a list of all."""
    with pytest.raises(ValueError, match=known):
        namespace_of([*SPACES, TWIN], named)
    with pytest.raises(ValueError, match=r"^no namespaces"):
        namespace_of([], named)


@pytest.mark.parametrize(
    ("named", "found"), [("", SPACES), ("ab", SPACES[:2]), ("gemma-", SPACES[1:2])]
)
def test_several_namespaces_can_be_named_at_once(
    named: str, found: list[store_pb2.NamespaceInfo]
) -> None:
    """A prefix names all its namespaces. An empty one names all, even if none exists."""
    assert namespaces_of(SPACES, named) == found
    assert namespaces_of([], "") == []
    with pytest.raises(ValueError, match=r"^no namespaces"):
        namespaces_of([], "x")


def test_a_title_has_the_name_and_the_id_s_beginning() -> None:
    """A title has the name and the first part of the id, or the id's part alone."""
    assert [title_of(each) for each in SPACES[1:3]] == ["gemma-large (ab02ab02)", "cd03cd03"]
