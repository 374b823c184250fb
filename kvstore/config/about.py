"""Facts about a setting for operators, beside its meaning, in a form that programs read."""

import inspect
import textwrap
from argparse import Action, RawDescriptionHelpFormatter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import ByteSize
from pydantic.fields import FieldInfo

UNITS_OF_SIZES = (("PiB", 50), ("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10))


@dataclass(frozen=True)
class Values:
    """The values of a type: their ``unit``, and in words which of them are ``allowed``.

    ``metavar`` is the placeholder in ``--help``, unless that lists all values.
    """

    unit: str
    allowed: str
    metavar: str = ""


@dataclass(frozen=True)
class Symptoms:
    """The names that show an operator a wrong setting, separated by spaces.

    ``stats`` are figures of ``kvstore-ctl stats --json``, and ``log`` events of the server's log.
    ``errors`` are reasons that callers get, and ``metrics`` series of the server's ``/metrics``.
    """

    stats: str = ""
    log: str = ""
    errors: str = ""
    metrics: str = ""

    def text(self) -> str:
        """Returns the names as a phrase, each in backquotes."""
        places = (
            (self.metrics, "{} of /metrics"),
            (self.stats, "{} of kvstore-ctl stats"),
            (self.log, "{} in the log"),
            (self.errors, "callers that get {}"),
        )
        phrases = (
            phrase.format(", ".join(f"`{name}`" for name in names.split()))
            for names, phrase in places
            if names
        )
        return "; ".join(phrases)


@dataclass(frozen=True)
class Reload:
    """The time at which a changed setting takes effect; ``at_sighup``: after a SIGHUP."""

    when: str
    at_sighup: bool = False


AT_SIGHUP = Reload("at SIGHUP", at_sighup=True)
NEXT_START = Reload("at the next start")
CONTENT_AT_SIGHUP = Reload("at SIGHUP for what the file says, another path at the next start")
CONTENT_AT_ONCE = Reload(
    "at the next connection for what the file says, another path at the next start"
)


@dataclass(frozen=True)
class About:
    """All facts about one setting. ``default`` is "" if the description has the default."""

    name: str
    description: str
    values: Values
    default: str
    reload: Reload
    shown: Symptoms

    @property
    def flag(self) -> str:
        """The setting on the command line."""
        return f"--{self.name.replace('_', '-')}"

    @property
    def variable(self) -> str:
        """The setting in the environment."""
        return f"KVSTORE_{self.name.upper()}"


def about(name: str, field: FieldInfo) -> About:
    """Returns the facts about a setting; raises ValueError if one is missing."""
    found = [*field.metadata, *_within(field.annotation)]
    values = next((each for each in found if isinstance(each, Values)), None)
    shown = next((each for each in found if isinstance(each, Symptoms)), None)
    if values is None or shown is None:
        raise ValueError(f"{name}: a setting needs Values, by its type, and Symptoms")
    reload = next((each for each in found if isinstance(each, Reload)), NEXT_START)
    return About(name, field.description or "", values, default_text(field), reload, shown)


def default_text(field: FieldInfo) -> str:
    """Returns a setting's default as an operator would write it, or "".

    It is "" if the default is None or depends on the environment; the description then has it.
    """
    if field.default_factory is not None or field.default is None:
        return ""
    return value_text(field.default)


def value_text(value: object) -> str:
    """Returns a value exactly as an operator would write it for a flag; "" for None."""
    if value is None:
        return ""
    if isinstance(value, ByteSize):
        return size_text(value)
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)


def size_text(size: int) -> str:
    """Returns a size in the largest unit that is exact: ``1536MiB``, ``0B``."""
    for unit, bits in UNITS_OF_SIZES:
        if size and not size % (1 << bits):
            return f"{size >> bits}{unit}"
    return f"{size}B"


def _within(annotation: Any) -> Iterator[object]:  # noqa: ANN401 - whatever a type may be
    """Yields what a type's annotations say about its values, also within a union."""
    if annotation is bool:
        yield Values("", "true or false")
    elif get_origin(annotation) is Literal:
        *most, last = get_args(annotation)
        yield Values("", f"{', '.join(most)} or {last}")
    elif get_origin(annotation) is Annotated:
        yield from annotation.__metadata__
    else:
        for each in get_args(annotation):
            yield from _within(each)


def help_formatter(fields: Mapping[str, FieldInfo]) -> type[RawDescriptionHelpFormatter]:
    """Returns argparse's formatter for these settings, by their names.

    pydantic's own help shows "(default: null)", a factory's name, or a size in bare bytes. For a
    value it shows the name of its Python type.
    """

    class SettingsHelp(RawDescriptionHelpFormatter):
        """Shows each setting with its description and its default."""

        def _metavar_formatter(
            self, action: Action, default_metavar: str
        ) -> Callable[[int], tuple[str, ...]]:
            field = fields.get(action.dest)
            metavar = field and about(action.dest, field).values.metavar
            if metavar:
                return lambda count: (metavar,) * count
            return super()._metavar_formatter(action, default_metavar)

        def _get_help_string(self, action: Action) -> str | None:
            field = fields.get(action.dest)
            if field is None:
                return action.help
            default = default_text(field)
            tail = f" (default: {default})" if default else ""
            return f"{field.description}{tail}".replace("%", "%%")

        def _fill_text(self, text: str, width: int, indent: str) -> str:
            return super()._fill_text(inspect.cleandoc(text), width, indent)

        def _split_lines(self, text: str, width: int) -> list[str]:
            # As in argparse, but a path is not broken.
            return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)

    return SettingsHelp
