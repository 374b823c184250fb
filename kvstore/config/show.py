"""``kvstore-server config``: the settings in force, each with its source."""

import json
import os
import sys
from argparse import ArgumentParser
from collections.abc import Callable, Sequence
from enum import IntEnum
from inspect import cleandoc
from pathlib import Path

from kvstore.assembly.access_rules import read_access
from kvstore.config.about import About, about, value_text
from kvstore.config.loading import Resolved, nearest, resolve, settings_error
from kvstore.config.settings import PROGRAM, Config

COMMAND = "config"
CHECK = "check"
EPILOG = f"""\
Every flag of {PROGRAM} may stand behind it, and counts as it would there.
`{PROGRAM} {COMMAND} check` says in one line that the settings can be used and ends with 0, or
what is wrong with them, files of tenants and certificates and the folder of tier 3 included,
and ends with 2."""


class Exit(IntEnum):
    """Exit status of the command."""

    FINE = 0
    WRONG = 2


def config_command(arguments: Sequence[str]) -> int:
    """Prints the settings to stdout and errors to stderr. Returns the exit status."""
    checks = list(arguments[:1]) == [CHECK]
    parser = _parser()
    asked, flags = parser.parse_known_args(arguments[1:] if checks else arguments)
    try:
        if asked.explain is not None:
            _require_field(_name(asked.explain))
        resolved = resolve(flags)
        if checks:
            read_access(resolved.config)
            _require_folder(resolved.config.tier3_path)
    except ValueError as error:
        sys.stderr.write(f"{PROGRAM}: {settings_error(error)}\n")
        return Exit.WRONG
    if checks:
        text = f"{PROGRAM}: the settings can be used\n"
    elif asked.explain is not None:
        text = explained(resolved, _name(asked.explain))
    else:
        shown: Callable[[Resolved], str] = asked.shown
        text = shown(resolved)
    sys.stdout.write(text)
    return Exit.FINE


def as_table(resolved: Resolved) -> str:
    """Returns one line a setting: its name, its value and its source."""
    rows = [
        (name, value_text(value) or "-", _origin(resolved, name))
        for name, value in resolved.config.in_force().items()
    ]
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    return "".join(f"{name:{widths[0]}}  {value:{widths[1]}}  {by}\n" for name, value, by in rows)


def as_json(resolved: Resolved) -> str:
    """Returns an object by setting name; sizes are in bytes, and null stands for None."""
    in_force = resolved.config.in_force()
    told = {
        each.name: {
            "value": _plain(getattr(resolved.config, each.name)),
            "in_force": _plain(in_force[each.name]),
            "from": resolved.origins[each.name].kind,
            "by": resolved.origins[each.name].name,
            "unit": each.values.unit,
            "allowed": each.values.allowed,
            "default": each.default,
            "counts": each.reload.when,
            "at_sighup": each.reload.at_sighup,
            "look_at": each.shown.text(),
        }
        for each in _abouts()
    }
    return json.dumps(told, indent=2) + "\n"


def as_toml(resolved: Resolved) -> str:
    """Returns a file for ``--config-file`` that sets all settings to their current values."""
    parts = [f"# The settings of {PROGRAM}, as `{PROGRAM} {COMMAND} --toml` found them.\n"]
    for each in _abouts():
        if each.name == "config_file":
            continue
        value = getattr(resolved.config, each.name)
        summary, *_ = cleandoc(each.description).splitlines()
        values = "; ".join(filter(None, (each.values.unit, each.values.allowed)))
        line = f"{each.name} = {_toml_value(value)}" if value is not None else f"# {each.name} ="
        parts.append(f"\n# {summary}\n# {values}. From: {_origin(resolved, each.name)}.\n{line}\n")
    return "".join(parts)


def explained(resolved: Resolved, name: str) -> str:
    """Returns all facts about one setting."""
    told = about(name, Config.model_fields[name])
    value = value_text(resolved.config.in_force()[name]) or "none"
    rows = {
        "value": f"{value}, from: {_origin(resolved, name)}",
        "unit": told.values.unit or "none",
        "allowed": told.values.allowed,
        "default": told.default or "as said above",
        "set by": f"{told.flag}, {told.variable}, {name} in the file",
        "counts": told.reload.when,
        "look at": told.shown.text(),
    }
    table = "".join(f"  {key:8} {text}\n" for key, text in rows.items())
    return f"{name}\n\n{cleandoc(told.description)}\n\n{table}"


def _parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog=f"{PROGRAM} {COMMAND}",
        description="Print the settings in force, each with where its value came from.",
        epilog=EPILOG,
        allow_abbrev=False,
    )
    forms = parser.add_mutually_exclusive_group()
    parser.set_defaults(shown=as_table)
    for flag, form, meaning in (
        ("--json", as_json, "all that is known of each setting, as JSON"),
        ("--toml", as_toml, "a file for --config-file that sets the same"),
    ):
        forms.add_argument(flag, dest="shown", action="store_const", const=form, help=meaning)
    forms.add_argument("--explain", metavar="SETTING", help="all that is known of one setting")
    return parser


def _abouts() -> list[About]:
    return [about(name, field) for name, field in Config.model_fields.items()]


def _origin(resolved: Resolved, name: str) -> str:
    return str(resolved.origins[name])


def _name(spelling: str) -> str:
    """Returns the name of a setting that is spelled as a flag, a variable, or itself."""
    return spelling.lower().removeprefix("kvstore_").lstrip("-").replace("-", "_")


def _require_field(name: str) -> None:
    if name not in Config.model_fields:
        near = nearest(name, list(Config.model_fields))
        hint = "" if near is None else f": did you mean {near}?"
        raise ValueError(f"there is no setting {name}{hint}")


def _require_folder(slab: Path | None) -> None:
    """Raises an error if tier 3's folder is missing: the server would run without tier 3."""
    if slab is None:
        return
    try:
        # The slash makes the call refuse a file.
        os.stat(f"{slab.parent}/")  # noqa: PTH116 - a Path drops the slash
    except OSError as error:
        raise ValueError(f"tier3_path {slab}: its folder: {error.strerror}") from error


def _toml_value(value: object) -> str:
    if isinstance(value, bool | float):
        return str(value).lower()
    # A JSON string is a TOML string, except for DEL.
    return json.dumps(value_text(value), ensure_ascii=False).replace("\x7f", "\\u007f")


def _plain(value: object) -> object:
    return str(value) if isinstance(value, Path) else value
