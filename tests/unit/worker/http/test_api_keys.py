"""API keys belong to users, and a wrong file of keys is refused."""

from pathlib import Path

import pytest

from inference_worker.http.api_keys import read_api_keys, salt_of


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Returns a file that only its owner may read."""
    path = tmp_path / "keys"
    path.touch(0o600)
    return path


def test_a_key_has_a_user(file: Path) -> None:
    """Each key has a user, and comments and empty lines are skipped."""
    file.write_text("# who may\nann  0123456789abcdef\n\nbob 0123456789abcdeg # for now\n")
    keys = read_api_keys(file)
    assert keys.user_of("0123456789abcdef") == "ann"
    assert keys.user_of("0123456789abcdeg") == "bob"
    assert keys.user_of("0123456789abcde") is None
    assert keys.user_of("") is None


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("", "no key"),
        ("ann", "line 1"),
        ("ann short", "line 1"),
        ("# all\nann a b", "line 2"),
        ("ann 0123456789abcdef\nann 0123456789abcdeg", "line 2"),
        (f"{'n' * 65} 0123456789abcdef", "line 1"),
    ],
)
def test_what_is_no_list_of_keys_is_refused(file: Path, content: str, told: str) -> None:
    """The error names the line and never shows a key."""
    file.write_text(content)
    with pytest.raises(ValueError, match=told) as refused:
        read_api_keys(file)
    assert "0123456789" not in str(refused.value)


def test_a_file_that_others_may_read_is_refused(file: Path) -> None:
    """A file that others may read is refused, because it is no secret."""
    file.write_text("ann 0123456789abcdef")
    file.chmod(0o644)
    with pytest.raises(ValueError, match="0644"):
        read_api_keys(file)


def test_users_share_no_salt() -> None:
    """No choice of names and salts gives two users one salt, and without users it is unchanged."""
    salts = [salt_of("a", "b c"), salt_of("a", ""), salt_of("ab", "c"), salt_of(None, "b")]
    assert len(set(salts)) == 4
    assert salts[-1] == "b"
