"""No line of a log is given what nobody may read, by the names of what it is given."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("kvstore", "clients/python/kvstore_client", "inference_worker")
LOGGERS = frozenset({"log", "_logger"})
# Of a name, at whatever place: `lease_secret`, `self.tokens`, `request.salt`.
SECRET = frozenset(
    {"token", "tokens", "text", "prompt", "credential", "authorization", "secret", "salt"}
    | {"edge", "key", "payload", "request", "response"}
)


def names_given(call: ast.Call) -> Iterator[str]:
    """Yields every name that stands in a call's arguments, keywords and keys of dicts included."""
    for argument in (*call.args, *call.keywords):
        for node in ast.walk(argument):
            match node:
                case ast.Name(id=name) | ast.Attribute(attr=name) | ast.keyword(arg=str(name)):
                    yield name
                case ast.Dict(keys=keys):
                    yield from (
                        each.value
                        for each in keys
                        if isinstance(each, ast.Constant) and isinstance(each.value, str)
                    )


def secrets_logged(source: str) -> list[tuple[int, str]]:
    """Returns the lines of a source that log something of a secret's name, with the name."""
    calls = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))
    return [
        (call.lineno, name)
        for call in calls
        if isinstance(call.func, ast.Attribute)
        and isinstance(call.func.value, ast.Name)
        and call.func.value.id in LOGGERS
        for name in names_given(call)
        if set(re.split(r"_|(?<=[a-z])(?=[A-Z])", name.lower())) & SECRET
    ]


@pytest.mark.parametrize("folder", FOLDERS)
def test_what_is_logged_has_no_name_of_a_secret(folder: str) -> None:
    """No call of a logger names a token, a text, a secret, a salt, or a message as a whole."""
    wrong = [
        (path.relative_to(ROOT).as_posix(), *found)
        for path in sorted((ROOT / folder).rglob("*.py"))
        for found in secrets_logged(path.read_text(encoding="utf-8"))
    ]
    assert wrong == []


@pytest.mark.parametrize(
    "line",
    [
        "log.info('x', tokens=1)",
        "log.debug(f'{request.salt}')",
        "_logger.info('x', extra={'lease_secret': 1})",
        "log.warning('x', why=str(self._credential))",
    ],
)
def test_a_secret_s_name_is_seen(line: str) -> None:
    """By keyword, in a text, in a dict, and as an argument of an argument."""
    assert secrets_logged(line)
