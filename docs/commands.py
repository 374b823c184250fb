"""Writes docs/commands.md: every command and flag of kvstore-worker and kvstore-ctl, from --help.

Run it after a change of a command: `.venv/bin/python docs/commands.py`. It needs torch, as the worker does.
The result is committed, and tests/unit/worker/commands/test_command_page.py keeps the two in step.
`--out FILE` writes another file instead, and leaves the tree alone.
"""

import argparse
import enum
import inspect
import re
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import typer

PAGE = Path(__file__).resolve().parent / "commands.md"
HEAD = """\
# Commands

Written by `docs/commands.py` from the commands' own `--help`: do not edit.

For operators: every command and flag of `kvstore-worker` and `kvstore-ctl`.
The only command of `kvstore-server` is [`config`](configuration.md#what-is-in-force); its flags are its [settings](configuration.md).
Examples are in [ctl.md](ctl.md), for `kvstore-worker serve` and `warm` in [serving.md](serving.md), and for `generate` and `chat` in [the tutorial](tutorial.md).
The page of errors has the [exit statuses](errors.md#exit-statuses).
"""
# With the module of each, imported when it is asked: the worker's takes seconds, for torch.
PROGRAMS = {"kvstore-worker": "inference_worker.commands.program", "kvstore-ctl": "kvstore_ctl.app"}
# Of every program that is made by typer, and the shell's own business.
OF_TYPER = frozenset({"--install-completion", "--show-completion"})


def commands(command: Any, name: str) -> Iterator[tuple[str, Any]]:  # noqa: ANN401 - typer's own, untyped
    """Yields a command and its subcommands with their names, without hidden ones."""
    yield name, command
    for word, below in getattr(command, "commands", {}).items():
        if not below.hidden:
            yield from commands(below, f"{name} {word}")


def part(name: str, command: Any) -> str:  # noqa: ANN401 - as above
    """Returns the section of one command."""
    rows = [
        row(each) for each in command.params if OF_TYPER.isdisjoint(each.opts) and not _hidden(each)
    ]
    table = (
        f"\n| argument | default | meaning |\n| --- | --- | --- |\n{''.join(rows)}" if rows else ""
    )
    level = "##" if " " not in name else "###"
    return f"\n{level} {name}\n\n{_text(command.help)}\n{table}"


def row(parameter: Any) -> str:  # noqa: ANN401 - as above
    """Returns the table's row of one flag or argument."""
    flags = [each for each in (*parameter.opts, *parameter.secondary_opts) if each.startswith("-")]
    spelled = ", ".join(f"`{each}`" for each in flags) or f"`{parameter.name.upper()}`"
    variables = parameter.envvar if isinstance(parameter.envvar, list) else [parameter.envvar]
    named = ", ".join(f"`${each}`" for each in variables if each)
    meaning = " ".join(
        filter(None, (_text(getattr(parameter, "help", "")), _range(parameter), named))
    )
    default = "" if parameter.required else _default(parameter.default)
    needed = " (needed)" if parameter.required else ""
    return f"| {spelled}{needed} | {default} | {' '.join(meaning.split()).replace('|', chr(92) + '|')} |\n"


def _default(value: object) -> str:
    if value is None or value is False or value in ("", []) or callable(value):
        return ""
    if isinstance(value, enum.Enum):
        value = value.value
    return f"`{'on' if value is True else value}`"


def _range(parameter: Any) -> str:  # noqa: ANN401 - as above
    """Returns the range of a number's values, if it is bounded."""
    least, most = getattr(parameter, "min", None), getattr(parameter, "max", None)
    if least is None and most is None:
        return ""
    if most is None:
        return f"At least {least}."
    return f"At most {most}." if least is None else f"From {least} to {most}."


def _hidden(parameter: Any) -> bool:  # noqa: ANN401 - as above
    return bool(getattr(parameter, "hidden", False))


def _text(described: str | None) -> str:
    """Returns a command's help as Markdown."""
    # rich's marks of style, and what is meant for a terminal's line breaks.
    text = inspect.cleandoc(described or "").replace("\b\n", "").replace("\f", "")
    return re.sub(r":[a-z]+:`", "`", text.replace("``", "`")).replace("<", "&lt;")


def program_part(name: str) -> str:
    """Returns the section of one of ``PROGRAMS``."""
    command = typer.main.get_command(import_module(PROGRAMS[name]).app)
    return "".join(part(*each) for each in commands(command, name))


def page() -> str:
    """Returns the page's text."""
    return "".join((HEAD, *map(program_part, PROGRAMS)))


def main() -> int:
    """Writes the page, and returns 0."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=PAGE, help="default: the committed page")
    out: Path = parser.parse_args().out
    out.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
