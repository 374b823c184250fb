"""The settings of one start, from flags, environment and file, each with its source."""

from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher, get_close_matches
from typing import NamedTuple

from pydantic import ValidationError
from pydantic_settings import CliApp, CliSettingsSource, EnvSettingsSource, SettingsError

from kvstore import __version__
from kvstore.config.about import help_formatter
from kvstore.config.settings import PROGRAM, Config
from kvstore.config.sources import file_values

# The start of pydantic's message about a command line that argparse refuses.
NOT_TAKEN = "error parsing CLI: "
UNKNOWN = "unrecognized arguments: "


class Origin(NamedTuple):
    """A setting's source: its ``kind``, and the setting's name there."""

    kind: str
    name: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.name}".strip()


class Resolved(NamedTuple):
    """The settings, and the source of each by name."""

    config: Config
    origins: dict[str, Origin]


def resolve(arguments: Sequence[str]) -> Resolved:
    """Returns the settings for a command line, and the source of each value.

    Raises ``ValueError`` (pydantic's, or ``SettingsError``) that names the problem, also for an
    unknown flag. ``--help`` and ``--version`` end the process with status 0.
    """
    flags = CliSettingsSource[ArgumentParser](
        Config, formatter_class=help_formatter(Config.model_fields), cli_exit_on_error=False
    )
    flags.root_parser.add_argument(
        "--version",
        action="version",
        version=f"{PROGRAM} {__version__}",
        help="show the version and exit",
    )
    try:
        config = CliApp.run(Config, cli_args=list(arguments), cli_settings_source=flags)
    except SettingsError as error:
        raise SettingsError(_told(str(error))) from None
    path = config.config_file
    sources: dict[str, Mapping[str, object]] = {
        "flag": flags(),
        "environment": EnvSettingsSource(Config)(),
        "file": {} if path is None else file_values(path, Config.model_fields),
    }
    origins = {}
    for name in Config.model_fields:
        kind = next((kind for kind, values in sources.items() if name in values), "default")
        names = {
            "flag": f"--{name.replace('_', '-')}",
            "environment": f"KVSTORE_{name.upper()}",
            "file": str(path),
        }
        origins[name] = Origin(kind, names.get(kind, ""))
    return Resolved(config, origins)


def _told(error: str) -> str:
    """Returns one line about a wrong command line, with the flag that may be meant."""
    if not error.startswith(NOT_TAKEN):
        return error
    why = error.removeprefix(NOT_TAKEN)
    first = why.removeprefix(UNKNOWN).split()[0].partition("=")[0]
    names = [f"--{name.replace('_', '-')}" for name in Config.model_fields]
    near = nearest(first, names) if why.startswith(UNKNOWN) else None
    hint = ";" if near is None else f": did you mean {near}?"
    return f"{why}{hint} usage: {PROGRAM} [--SETTING VALUE]..., {PROGRAM} --help lists them"


def nearest(word: str, words: Sequence[str]) -> str | None:
    """Returns the one of ``words`` that is most like ``word``, or None if none is like it.

    Of several it is the first, so that ``tier_bytes`` is taken for ``tier1_bytes``.
    """
    if not get_close_matches(word, words, n=1):
        return None
    return max(words, key=lambda each: SequenceMatcher(None, each, word).ratio())


def load_config(arguments: Sequence[str]) -> Config:
    """Returns the settings for a command line; raises and ends as :func:`resolve` does."""
    return resolve(arguments).config


def settings_error(error: ValueError) -> str:
    """Returns one line about all wrong settings, each by its name."""
    if not isinstance(error, ValidationError):
        return str(error)
    problems = (
        f"{'.'.join(str(part) for part in each['loc']) or 'settings'}: "
        f"{each['msg'].removeprefix('Value error, ')}"
        for each in error.errors()
    )
    return "; ".join(problems)
